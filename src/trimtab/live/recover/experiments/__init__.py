"""Experiments of a recovering run: steps are done again with one thing changed.

questions.py      from the records to the question, from its answer to the journal
replay.py         steps are done again for a question
running.py        one experiment; replay_step.py: one of its steps
rank_exchange.py  what ranks exchange in an experiment
"""
