"""What `recover` undoes, and what it leaves alone.

flips     random bits flipped in weights and moments, in many runs, on one and two ranks
faults    faults of the catalogue against the same run without one, in every mode
phases    what people change on purpose, not announced, against the same run without a guard
healthy   loops of many kinds, in `recover` and in `protect`
schedules what ranks may do at any time, on four of them
worlds    the small runs that flips, faults and phases train
"""
