"""What is measured, on the device unless said otherwise.

step_meter.py    every step: loss, gradient norm, learning rate, the user's signals
telemetry.py     every few steps: weights, moments, updates, by role and layer
state_sums.py    the sums that telemetry is made of
roles.py         role and layer of a parameter, by its name
activations.py   the size of each block's output, by forward hooks
state_facts.py   a state in numbers that a resume is compared by
loss_dtype.py    in which format the first loss was computed
step_loop.py     a loader step by step: positions and facts of its batches, on the host
batch_facts.py   fingerprint, token statistics and token ids of a batch; its losses by row
"""
