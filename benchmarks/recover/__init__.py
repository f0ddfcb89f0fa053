"""What `recover` undoes, and what it leaves alone.

flips     random bits flipped in weights and moments, in many runs
phases    what people change on purpose, not announced, against the same run without a guard
worlds    the small runs that both of them train
"""
