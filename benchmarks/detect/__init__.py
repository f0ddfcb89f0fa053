"""The scoreboard of detection: every detector over the same public runs, one table.

ours.py        trimtab's judge                  measure.py   detectors x runs -> rates and recalls
peers.py       the others                       cost.py      what judging costs
injections.py  faults put into healthy runs     __main__.py  the tables and the bars
"""
