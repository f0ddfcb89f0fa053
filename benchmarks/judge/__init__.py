"""The judge in worlds that it was not made for (`scripts/bench judge`).

recording   a training run whose records are kept, and faults that can be planted in it
kinds       51 kinds of healthy runs, beside the 47 of `benchmarks.gate.kinds`
worlds      all runs, their two halves, and the cache of their records
drawn       the playbook's incidents and bad starts, drawn with noise
measure     what the judge says of each
"""
