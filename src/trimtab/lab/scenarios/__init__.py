"""Reproducible runs with a known truth.

catalogue.py   the registry: every fault and hard negative by name
listing.py     one-line descriptions for `trimtab lab list`
scenario.py    Scenario: kind, seed and grade; determines everything about a run
trial.py       trains one scenario and writes its truth.json
suite.py       many scenarios with their clean twins
"""
