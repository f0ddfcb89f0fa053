"""Decision trees: from an incident to its cause.

walk        what a tree is, and how it is walked
textbook    the textbook's questions and leaves
"""
