"""What the rules inspect, each measured once.

measurements.py   Measurements: every measurement by its name, made on first use
kept_state.py     the user's objects as they were, restored and compared
trace.py          what a forward pass does: losses, softmaxes, attention, norms, activations, tokens
passes.py         forward and backward passes: of a batch, in bf16, split, with a changed future
training.py       a few real steps, repeated steps on one batch, the real scheduler to its last step
loader.py         the first batches, the next epoch, a state round trip; what ranks have
ranks.py          what ranks exchange, so that all of them make the same passes
"""
