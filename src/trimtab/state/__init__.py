"""State that a run can return to.

host_copy.py         nested containers of (sharded) tensors, copied to the host and back in place
training_state.py    everything that the next step depends on
snapshot.py          one copy of it, taken and put back without replacing a single tensor
ring.py              which snapshots are kept: geometric ages, and what a rollback may need
rng.py               random number generators of Python, numpy and torch
source.py            the data source that a batch names
batches.py           batches of any nesting: their tensors, mapped, listed and counted
tape.py              the batches since the oldest snapshot, served again after a rollback
checkpoints/         state on disk: verified, judged, resumed from
"""
