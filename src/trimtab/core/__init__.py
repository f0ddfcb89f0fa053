"""The plain values that every other package uses, and the interfaces of the extension points.

Records     block, run, signals, events, robust
Results     findings, incidents, causes, actions
Views       jsonable, text, escaping, card
Settings    config
Extensions  detector, state, sink, checkpointer, plugins, rules
Errors      errors
"""
