"""The rules on objects, by what they inspect.

initialisation.py   the first step runs; first loss, std of weights
signal.py           activations and gradients by depth, dead units, norms, attention
optimizer.py        what the optimizers hold, decay and leave out; clip threshold; a resume;
                    rounding: softmax in low precision, bf16 against fp32, lost updates, same bits
loss.py             one batch overfits, micro-batches and ranks add up; labels, causality;
                    the loader: repeated batches, ranks, epochs, state
"""
