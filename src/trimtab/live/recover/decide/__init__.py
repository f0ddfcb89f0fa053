"""Deciding what a recovering run does, on the first rank, at every boundary.

controller.py   incidents in, orders out; decisions are written down
acting.py       from a decision to an order
asking.py       a person approves or declines it
situations.py   from an incident, the records and the settings to the ladder's input
evidence.py     what the records say
probing.py      when the weights are probed, with which batches; healthy readings
canary.py       a healthy run is probed now and then
new_sources.py  a data source that is new to the run
rank_watch.py   the rank that computes wrongly
remedies.py     what was done before, and the budgets
run_view.py     what may be asked about the run

What to do is decided by `trimtab.decide.ladder`, which is pure.
"""
