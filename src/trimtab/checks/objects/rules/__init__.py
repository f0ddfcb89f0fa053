"""The rules on objects, by what they inspect.

first_steps.py      the first step runs; its loss; parameters without gradient
optimizer.py        what the optimizers hold, decay and leave out; clip threshold; a resume;
                    updates lost to rounding
loss.py             one batch overfits, micro-batches and ranks add up; labels, causality;
                    the loader: repeated batches, ranks, epochs, state
"""
