"""From findings to an explained incident: when, how bad, which class, and likely why.

findings --> IncidentTracker --> incident --> observations --> ranking --> Diagnosis
             (onset, peak,                    (yes, no, not    (causes by
              end, class)                      recorded)        probability)

incidents/    the state machine          evidence/    checks and observations
causes/       from evidence to a cause   tree/        the textbook's decision tree
batches/      its sequences, tokens      measures/    figures of an incident or a run
context, diagnosis                       one incident before and after it is explained
"""
