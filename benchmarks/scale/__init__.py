"""Runs that are long, and folders of many runs: `scripts/bench scale`.

long_run.py    writes the journals
processes.py   starts a command and measures its time and its peak memory
commands.py    each command on the long run
__main__.py    the tables, and one server for a folder of a thousand runs
"""
