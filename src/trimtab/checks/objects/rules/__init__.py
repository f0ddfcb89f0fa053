"""The rules on objects, one file per idea.

initialisation.py   the first step runs; first loss, std of weights
signal.py           activations and gradients by depth, dead units, norms, attention
precision.py        softmax in low precision, bf16 against fp32, updates lost to rounding, same bits
optimizer.py        what the optimizers hold, decay and leave out; the clip threshold
schedule.py         a resume half-way; the curve itself is judged by the rules on configs
loss.py             one batch overfits, micro-batches and ranks add up
causality.py        labels, and what a position may see
loader.py           repeated batches, ranks, epochs, state
"""
