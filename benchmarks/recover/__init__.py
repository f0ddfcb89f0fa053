"""Recovery in the lab: what the ladder does about each fault, and what it costs.

cases.py      the faults, with the clock that each goes by, and the healthy runs
arms.py       one run: clean, without a guard, protected, restarted by hand, recovering
plan.py       the order of the runs
again.py      decisions computed again from what the runs wrote
schedules.py  random schedules on four ranks: `scripts/bench recover.schedules FOLDER`
cost.py       what it costs a healthy run: `scripts/bench recover.cost`
pictures.py   the final losses of all arms, as SVG
figures.py    differences to the clean twin with their bounds; the tables
__main__.py   `scripts/bench recover FOLDER [--seeds 0,1] [--cases F13w,F02]`
"""
