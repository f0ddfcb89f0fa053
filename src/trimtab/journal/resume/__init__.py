"""The resume audit: does a run continue from the very state that was saved?

facts.py         the facts that are compared, and their names
journal_past.py  what the journal says about them
comparison.py    saved against found, with a fix for each difference
"""
