"""The plain values that every other package uses, and the interfaces of the extension points.

Records     block, signals, records/, robust
Results     findings, incidents, causes, actions, jsonable
Settings    config/
Extensions  detector, state, reader, sink, checkpointer, plugins
Errors      errors
"""
