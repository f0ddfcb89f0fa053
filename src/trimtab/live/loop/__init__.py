"""When a step begins and ends.

step_monitor.py   the life of a step, as a state machine
step_facts.py     what the host adds to a step before it is recorded
state_guard.py    what watches over the trained state, in a run that recovers
step_hooks.py     before and after `optimizer.step()`, and at a SIGTERM
step_sync.py      the numbers of a step are added up over ranks, and become records later
skips.py          steps that end without an update
hang_watchdog.py  a run that makes no progress
"""
