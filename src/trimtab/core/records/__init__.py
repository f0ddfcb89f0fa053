"""Records: how blocks are built, kept on disk, and cut at rollbacks.

column          the values of one signal
stored_columns  those that stay on disk until they are used
builder         records to a block
history         what is kept to go back; rollbacks: what was taken back
probe_events    the events of experiments
"""
