"""The incident state machine: findings in, incidents out.

tracker              groups findings into incidents; one for all rule sets
open_incident        what is known about one incident
course, trend        its losses since the onset, and what they would have been
run_start            how the run began, to recognise a restart
recovery             what a rule set decides: when an incident is over, and its class
trimtab_recovery, outlook
textbook_recovery
"""
