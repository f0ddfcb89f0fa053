"""The resume audit: does a run continue from the very state that was saved?

facts.py         the facts that are compared, and their names
journal_past.py  what the journal says about them
comparison.py    saved against found: what differs
resume_audit.py  the detector: a finding for each difference, with its fix
"""
