"""State that a run can return to.

host_copy.py         nested containers of (sharded) tensors, copied to the host and back in place
training_state.py    the objects whose state a checkpoint holds
rng.py               random number generators of Python, numpy and torch
batches.py           batches of any nesting: their tensors, mapped, listed and counted
checkpoints/         state on disk: verified, judged, resumed from
"""
