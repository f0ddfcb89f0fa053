"""The scoreboard of detection: every detector over the same public runs, one table.

contenders.py  what a detector must offer       measure.py   contenders x runs -> results
ours.py        trimtab's judge                  figures.py   results -> rates and recalls
peers.py       the others                       bars.py      what trimtab asks of itself
injections.py  faults put into healthy runs     cost.py      what judging costs
"""
