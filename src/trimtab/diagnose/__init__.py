"""From findings to an explained incident: when, how bad, which class, and likely why.

findings --> IncidentTracker --> incident --> walk the tree --> hypotheses --> Diagnosis
             (onset, peak,                    (each question     (supported,
              end, class)                      and its answer)    open, ruled out)

incidents/    the state machine          tree/        decision trees
evidence/     checks                     causes/      hypotheses and the conclusion
measures/     figures of an incident or a run
context, diagnosis                       one incident before and after it is explained
"""
