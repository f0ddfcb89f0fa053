"""The scoreboard of detection: every detector over the same public runs, one table.

ours.py        trimtab's judge                  measure.py   detectors x runs -> rates and recalls
peers.py       the others                       bars.py      what trimtab asks of itself
injections.py  faults put into healthy runs     cost.py      what judging costs
"""
