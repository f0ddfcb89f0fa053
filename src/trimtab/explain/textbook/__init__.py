"""The textbook's rules (`--rules textbook`), the baseline to beat.

tree        its questions, their order, and where each answer leads
causes      from the walk through the tree to a diagnosis
closing     when an incident is over, and its class
"""
