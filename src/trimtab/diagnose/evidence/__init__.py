"""Checks: yes/no tests on an incident's signals.

check        what a check is and returns
named        findings that name their cause
precision    non-finite values and the loss scale
spike        a sudden rise of the loss, and what may have caused it
slow         slow changes in the records before the onset
"""
