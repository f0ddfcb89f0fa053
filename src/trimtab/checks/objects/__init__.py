"""Rules on the real objects of a run: model, optimizer, scheduler, loader, loss.

run.py            check(): runs every rule; the user's objects are restored bit by bit
inputs.py         what the user gives, in a call or by `module:function`
rules/            rules by what they inspect; their parameters are measurements
measure/          what rules inspect, each measured once; the copy that is restored after it
learning_rate.py  range test, and coordinate check over widths
"""
