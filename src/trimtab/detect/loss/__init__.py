"""Detectors of the loss and of the norms that lead to a spike.

loss_detectors.py  scores loss and norms once, for the three detectors that share the scores:
loss_spike.py      a rise beyond the noise of the run; spike_limits.py has the limits
level_shift.py     a level that rose, or drifts; lasting_rise.py waits until it has lasted
norm_spike.py      a gradient or update many times larger than usual
gross_loss.py      a loss beyond all measure before the baseline is known
resume_gap.py      a loss that is higher after a resume than before
no_learning.py     a loss no better than the frequency of tokens, or than at the start of the run
                   (fall_from_start.py)
"""
