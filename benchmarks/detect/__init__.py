"""The scoreboard of detection: every detector over the same material, one table.

material.py    real runs and injected faults        contenders.py  what a detector must offer
injections.py  the shapes of the faults             ours.py        trimtab's judge
measure.py     contenders x material -> results     peers/         the others, a file a family
figures.py     results -> rates and recalls         tables.py      figures -> Markdown
dominance.py   who beats whom on what               cost.py        what judging costs
"""
