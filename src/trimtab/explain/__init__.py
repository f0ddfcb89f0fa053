"""From findings to an explained incident: when, how bad, which class, and likely why.

findings --> IncidentTracker --> incident --> observations --> ranking --> Diagnosis
             (onset, peak,                    (yes, no, not    (causes by
              end, class)                      recorded)        probability)

incidents/    the state machine               context       an incident and the records around it
evidence/     what can be observed            diagnosis     everything that is said about it
causes/       from evidence to a cause        measures      an incident in numbers
textbook/     the other rule set              time_use      how much of a run was kept
verdict/      facts, class, instruction       comparison    how far apart two runs are
                                              verification  what to check in a run with the fix
"""
