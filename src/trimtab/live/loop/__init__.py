"""When a step begins and ends.

step_monitor.py   the life of a step; ranks meet here
step_hooks.py     before and after `optimizer.step()`
skips.py          steps that end without an update
step_loop.py      `guard.steps`: a loader step by step
exit_hooks.py     SIGTERM
"""
