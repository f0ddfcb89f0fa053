"""The cause of an incident, by evidence (trimtab's rules) or by a decision tree (the textbook's).

by_evidence     observations --> ranking --> conclusion
ranking         the scoring: causes by their probability
weights         the measured weights (weights.json); expectations: what they start from
texts           each cause in the words of a post-mortem
by_tree         a walk --> conclusion; hypotheses: the suspects beside the tree
conclusion      the cause in words: what both conclude
"""
