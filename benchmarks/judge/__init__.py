"""The judge in worlds that it was not made for (`scripts/bench judge`).

worlds      the runs of `benchmarks.zoo`, healthy and with a fault, and the cache of their records
drawn       the playbook's incidents and bad starts, drawn with noise
"""
