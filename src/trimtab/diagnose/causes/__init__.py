"""The cause of an incident.

hypotheses    possible causes, with the evidence for and against each
conclusion    the cause that is named
"""
