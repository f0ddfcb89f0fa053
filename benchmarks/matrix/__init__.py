"""The support matrix: the wheel in clean environments, by Python, torch, extra and age.

cases.py         what is installed, imported, called and tested
environments.py  an interpreter, a virtual environment, what pip and the programs print
attempt.py       one case from an empty environment to its outcome
__main__.py      all cases, and the table
"""
