"""Experiments in the lab: what they find out, and what they cost.

runs.py       one recovering run with a fault, and what its report says with and without answers
places.py     NaN planted in a module by an operation, and whether both are named
figures.py    the tables
__main__.py   `scripts/bench probes FOLDER [--seeds 181,182] [--kinds F02,F12] [--minutes 30]`
"""
