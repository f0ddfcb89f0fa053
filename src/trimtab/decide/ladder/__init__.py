"""The ladder: what a run does by itself about an incident, by expected cost in steps.

situation.py      what is known at a boundary between steps; the input
decision.py       what to do, with the alternatives and their costs; the output
reading.py        a probe's reading against the healthy ones of the same run
origins.py        where an incident may come from, and how likely each remedy fixes it
costs.py          the expected cost of each option, in steps
decide.py         from situation to decision
suspects.py       a data source or a rank that may be to blame
differences.py    settings that differ from those of a snapshot
decision_log.py   decisions.jsonl: written, read, computed again

Pure: the same situation always gives the same decision, so decisions can be computed again from
their file.
"""
