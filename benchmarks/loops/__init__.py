"""The guard in other people's loops: what is known to go wrong, and what was tried.

findings    what a red team found in 0.1, each with the tests that show it
__main__    the commands: findings (default), setups, soak, schedules
setups      what was tried, as a table in docs/live.md
reports     running tests, and reading what pytest writes about them
"""
