"""Reproducible runs with a known truth.

catalogue.py   the registry: every fault and hard negative by name, with a line on each
scenario.py    Scenario: kind, seed and grade; determines everything about a run
suite.py       trains one scenario and writes its truth.json; many of them with their clean twins
"""
