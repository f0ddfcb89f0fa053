"""The incident state machine: findings in, incidents out.

tracker              groups findings into incidents; one for all rule sets
open_incident        what is known about one incident; how the run began
course               its losses since the onset, and what they would have been
closing              what a rule set decides: when an incident is over, and its class
"""
