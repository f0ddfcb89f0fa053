"""The scoreboard of detection: every detector over the same material, one table.

material.py    real runs and injected faults        contenders.py  what a detector must offer
injections.py  the shapes of the faults             ours.py        trimtab's judge
measure.py     contenders x material -> figures     peers/         the others, a file a family
tables.py      figures -> Markdown                  cost.py        what judging costs
"""
