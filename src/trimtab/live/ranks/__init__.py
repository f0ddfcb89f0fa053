"""What concerns several ranks, and numbers on their way to the host.

rank_group.py   which ranks watch together; a process group of trimtab's own
exchange.py     the numbers of a step: summed over ranks, then on their way to the host
shards.py       precision of norms of sharded tensors, and how many ranks hold the same part
"""
