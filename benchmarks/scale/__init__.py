"""Runs that are long, and folders of many runs: `scripts/bench scale`.

long_run.py    writes the journals
processes.py   starts a command and measures its time and its peak memory
commands.py    each command on the long run
many_runs.py   one server for a folder of a thousand runs
"""
