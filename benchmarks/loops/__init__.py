"""The guard in other people's loops: what was tried, and for how long.

__main__    the commands: setups, soak, schedules
setups      what was tried, as a table in docs/live.md
reports     running tests, and reading what pytest writes about them
"""
