"""Experiments on an incident: the run answers what its log cannot.

An experiment is a generator: it yields the steps that it wants done again (`Pass`), gets what they
gave (`Result`), and returns an `Answer`. The guard restores, lets the user's loop do the steps, and
puts everything back (`live/recover/experiments/replay.py`): so this package is below `live`.

passes.py           question, pass, result, answer
registry.py         the experiments by name
again.py            the same steps twice: hardware, or kernels that are not deterministic
which_rank.py       the rank that errs, by what each rank itself computed
first_nonfinite.py  module and operation of the first value that is not finite
precision.py        fp32: without autocast
half.py             which sequences and tokens, by bisection
batch_or_state.py   earlier, next: the batch or the state?
state_checks.py     restore-check, reference, lower-lr
remedy.py           what the run is about to do, tried
rows.py             sequences and tokens of a batch, exchanged
plan.py             replay in a fresh process
"""
