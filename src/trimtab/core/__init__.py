"""The plain values that every other package uses, and the interfaces of the extension points.

Records     block, column, stored_columns, builder, signals, history, rollbacks
Results     findings, incidents, causes, actions, jsonable
Settings    config, ladder_config, ship_config, settings
Extensions  detector, state, reader, sink, checkpointer, plugins
Errors      errors
"""
