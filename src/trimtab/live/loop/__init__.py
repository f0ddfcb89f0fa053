"""When a step begins and ends.

step_monitor.py   the life of a step, as a state machine
step_hooks.py     before and after `optimizer.step()`
step_sync.py      the numbers of a step are added up over ranks, and become records later
skips.py          steps that end without an update
exit_hooks.py     SIGTERM
hang_watchdog.py  a run that makes no progress
"""
