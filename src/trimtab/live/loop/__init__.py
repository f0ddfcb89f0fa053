"""When a step begins and ends.

step_monitor.py   the life of a step; ranks meet here
step_hooks.py     before and after `optimizer.step()`
skips.py          steps that end without an update
step_loop.py      a loader step by step
step_iterator.py  `guard.steps`, and the same for a trainer that asks for one step at a time
exit_hooks.py     SIGTERM
"""
