"""The support matrix: the wheel in clean environments, by Python, torch, extra and age.

cases.py         what is installed, imported, called and tested
environments.py  an interpreter, a virtual environment, what pip and the programs print
__main__.py      each case from an empty environment to its outcome, and the table
"""
