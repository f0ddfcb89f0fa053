"""Checkpoints that can be trusted: verified before they are opened, judged before they are used.

manifest.py    size and checksum of every file of a checkpoint
index.py       checkpoints.json: which checkpoints a run has, and the verdict on each
store.py       save, verify, load and delete; a save is complete or invisible
content.py     what a checkpoint holds, by names that do not depend on the layout of the ranks
dcp.py         the checkpointer for torch's distributed checkpoints

A checkpoint is `unproven` when it is saved, `proven` once training has gone on from it for a while
without an incident that reaches back to it, and `bad` if it is damaged, not finite, or was saved
after the onset of an incident that hurt the weights.
"""
