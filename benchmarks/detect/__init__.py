"""The scoreboard of detection: every detector over the same material, one table.

material.py    real runs and injected faults        contenders.py  what a detector must offer
injections.py  the shapes of the faults             ours.py        trimtab's judge
suite.py       runs of the lab                      peers/         the others, a file a family
measure.py     contenders x material -> results     figures.py     results -> rates and recalls
classes.py     classes of incidents                 suite_bars.py  the lab against its bars
dominance.py   who beats whom on what               tables.py      figures -> Markdown
cost.py        what judging costs
"""
