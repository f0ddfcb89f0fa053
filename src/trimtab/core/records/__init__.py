"""Records: how blocks are built and cut at rollbacks.

builder         records to a block
history         what is kept to go back; rollbacks: what was taken back
probe_events    the events of experiments
"""
