"""The textbook's rules (`--rules textbook`), the baseline to beat.

checks      its questions, as functions of the records around an incident
tree        the order in which they are asked, and where each answer leads
causes      from the walk through the tree to a diagnosis
closing     when an incident is over, and its class
"""
