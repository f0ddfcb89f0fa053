"""What `recover` undoes, and what it leaves alone.

flips     random bits flipped in weights and moments, in many runs, on one and two ranks
faults    faults of the catalogue against the same run without one, in every mode
schedules what ranks may do at any time, on four of them
worlds    the small runs that flips and faults train

What people change on purpose is in `benchmarks.trial` and `benchmarks.attack`, healthy loops of
many kinds in `benchmarks.loops`.
"""
