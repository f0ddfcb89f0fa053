"""Detectors of the loss and of the norms that lead to a spike.

loss_detectors.py  scores loss and norms once, for the three detectors that share the scores:
loss_spike.py      a rise beyond the noise of the run; spike_limits.py has the limits
level_shift.py     a level that rose, or drifts
norm_spike.py      a gradient or update many times larger than usual
resume_gap.py      a loss that is higher after a resume than before
no_learning.py     a loss no better than the frequency of tokens
"""
