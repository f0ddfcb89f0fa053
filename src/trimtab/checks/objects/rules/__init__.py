"""The rules on objects, by what they inspect.

initialisation.py   the first step runs; first loss, std of weights
signal.py           activations and gradients by depth, dead units, norms, attention
precision.py        softmax in low precision, bf16 against fp32, updates lost to rounding, same bits
optimizer.py        what the optimizers hold, decay and leave out; clip threshold; a resume half-way
loss.py             one batch overfits, micro-batches and ranks add up; labels, causality
loader.py           repeated batches, ranks, epochs, state
"""
