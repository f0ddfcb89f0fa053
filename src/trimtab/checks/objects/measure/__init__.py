"""What the rules look at, each measured once.

measurements.py    Measurements: every measurement by its name, made on first use
batches.py         batches of any nesting: cut, split, compared
kept_state.py      the user's objects as they were, restored and compared
trace.py           what a forward pass does: losses, softmaxes, norms, activations, tokens
attention.py       entropy and largest logit of an attention call
passes.py          forward and backward passes: of a batch, in bf16, split, with a changed future
training.py        a few real steps, and one batch again and again
simulation.py      the real scheduler, run to its last step and resumed half-way
ranks.py           what ranks exchange, so that all of them make the same passes
loader.py          the first batches, the next epoch, a state round trip; what ranks have
"""
