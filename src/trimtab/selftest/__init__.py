"""`trimtab selftest`: does the guard keep its promises on this machine and this device?

run.py         picks the device, makes every check, and measures what each mode costs
loop.py        a small model, the loops that train it, and the bits that a run leaves
promises.py    the checks: same bits, no host reads, no NaN in the weights, an exact undo
two_ranks.py   the check with two processes, and what each of them does
"""
