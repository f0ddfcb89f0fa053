"""Experiments on an incident: the run answers what its log cannot.

An experiment is a generator: it yields the steps that it wants done again (`Pass`), gets what they
gave (`Result`), and returns an `Answer`. The guard restores, lets the user's loop do the steps, and
puts everything back (`live/recover/replay.py`): so this package is below `live`.

passes.py           question, pass, result, answer
registry.py         the experiments by name
again.py            the same steps twice: hardware, or kernels that are not deterministic
first_nonfinite.py  module and operation of the first value that is not finite
precision.py        fp32: without autocast
half.py             which sequences, by bisection
batch_or_state.py   earlier, next: the batch or the state?
state_checks.py     restore-check, reference, lower-lr
rows.py             sequences of a batch, exchanged
"""
