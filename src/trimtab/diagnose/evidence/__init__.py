"""Checks: yes/no tests on an incident's signals."""
