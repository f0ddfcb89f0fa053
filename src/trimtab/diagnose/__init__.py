"""From findings to an explained incident: when, how bad, which class, and likely why.

findings --> IncidentTracker --> incident --> walk the tree --> hypotheses --> Diagnosis
             (onset, peak,                    (each question     (supported,
              end, class)                      and its answer)    open, ruled out)
"""
