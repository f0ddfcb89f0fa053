"""State that a run can return to.

host_copy.py         nested containers of (sharded) tensors, copied to the host and back in place
snapshots.py         copies of the trained state in host memory, restored in place
training_state.py    the objects of a run: what a checkpoint holds, what the user gives, parameters
rng.py               random number generators of Python, numpy and torch
batches.py           batches of any nesting: their tensors; copies of the newest ones
checkpoints/         state on disk: verified, judged, resumed from
"""
