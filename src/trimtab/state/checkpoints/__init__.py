"""Checkpoints that can be trusted: verified before they are opened, judged before they are used.

run_checkpoints.py    Checkpoints: what the user holds to save a run and to resume it
selection.py          which checkpoint a run returns to, and why that one
content.py            what a checkpoint holds, by names that fit any layout of the ranks
rank_state.py         what each rank saves for itself: random numbers, place in the data
plain_values.py       values that are read back without unpickling objects
data_cursor.py        where the run is in its data, and how to get there again
dcp.py                the checkpointer for torch's distributed checkpoints
store.py              save, verify and load; a save is complete or invisible
links.py              links to checkpoints that the training loop writes and deletes by itself
ranks.py              what the ranks do together
index.py              checkpoints.json: which checkpoints a run has, and the verdict on each
manifest.py           size and checksum of every file of a checkpoint
verdicts.py           unproven, proven or bad: a pure function of the judged run
history.py            the attempts of a run, which the verdicts need
from_journal.py       the verdicts of a run that has ended, from its journal

index, manifest, verdicts, history and from_journal work without torch.
"""
