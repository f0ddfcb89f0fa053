"""What concerns several ranks, and numbers on their way to the host.

rank_group.py   which ranks watch together; a process group of trimtab's own
rank_sync.py    the collectives of every `optimizer.step()`: the sum and the vote
shards.py       precision of norms of sharded tensors, and how many ranks hold the same part
in_flight.py    numbers on their way from the device to the host, `lag` steps long
"""
