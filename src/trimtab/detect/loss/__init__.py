"""Detectors of the loss and of the norms that lead to a spike.

loss_detectors.py    scores loss and norms once, for the detectors that share the scores:
meaning.py           the scale on which a loss is compared, and whether it measures progress
loss_spike.py        a rise beyond the noise of the run
level_shift.py       a level that rose, or drifts, once it has lasted; cells.py has its means;
                     a smooth curve that turns upwards
norm_spike.py        a gradient or update many times larger than usual
without_baseline.py  losses that need no baseline: at the start of a run, and at a resume
"""
