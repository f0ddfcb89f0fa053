"""A judge for agents: given the file of a run, what happened, since when, and what to do?

cases.py       runs as files, and what is true of each
answers.py     the answer of a tool, and how it is scored
contenders.py  trimtab, and rules that others have published
live.py        that agent beside twenty runs that grow, on two judges
"""
