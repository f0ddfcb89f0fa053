"""The incident state machine: findings in, incidents out.

tracker              groups findings into incidents; one for all rule sets
open_incident        what is known about one incident
history              what is remembered of the run while none is open, and how it began
rules                what a rule set decides: when an incident begins and is over, and its class
"""
