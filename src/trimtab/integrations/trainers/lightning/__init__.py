"""The Lightning Trainer.

callback.py     `TrimtabCallback`: what happens in which hook
clipping.py     the norm from before the Trainer clips
data.py         batches by way of the guard: data positions, batches served again
counters.py     where the Trainer is, to go back to
checkpoints.py  its checkpoints: verdicts, and where to resume
"""
