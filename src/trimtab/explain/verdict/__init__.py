"""The verdict on an incident: facts, measured once, and what follows from them.

level, reference   what was usual before the onset, and how exactly that is known
facts              what is true of the incident now
table              facts -> class and instruction
"""
