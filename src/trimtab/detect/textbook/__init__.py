"""The detectors of the textbook's rules.

textbook_detectors.py  the list of them
spike.py               a loss above mean + 3 deviations of the 100 before it
rise.py                200 losses in a row, each above the one before
scale.py               a loss scale under 1
"""
