"""Records: what is kept of them to go back, and what a rollback took back.

history         what is kept to go back; rollbacks: what was taken back
probe_events    the events of experiments
"""
