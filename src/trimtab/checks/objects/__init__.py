"""Checks on the real objects of a run before step 1: model, optimizer, scheduler, loader, loss.

run.py          preflight(): runs every check; the user's objects come back bit by bit
inputs.py       what the user gives
definition.py   PreflightCheck and Seen: a check is a function, its parameters are measurements
catalogue.py    all checks in the order of their ids
checks/         one file per idea: initialisation, signal, precision, optimizer, ...
measure/        what checks look at, each measured once; what is kept and put back
plan.py         the settings that the objects have, for the rules of `trimtab check`
report.py       PreflightReport; view.py prints it
mup.py          coordinate check over widths
lr_range.py     learning-rate range test, stopped by trimtab's detectors
setups.py       `module:function` of the command, and what such a function returns
"""
