"""What is measured, on the device unless said otherwise.

step_meter.py      loss and gradient norm of every step; the user's signals
gradients.py       the norm of the gradients about to be applied, and whether they changed
numbers.py         numbers as people give them
telemetry.py       every few steps: weights, moments, updates, by role and layer
state_sums.py      the sums that telemetry is made of
param_chunks.py    parameters with gradients and moments, in chunks
shard_weights.py   sums by role and layer that count each shard once
roles.py           role and layer of a parameter, by its name
local_gradients.py a rank's own gradients, while one rank is suspected
activations.py     the size of each block's output, by forward hooks
batch_facts.py     fingerprint, token statistics and token ids of a batch, on the host
row_losses.py      the loss of every sequence, where the user gives it
"""
