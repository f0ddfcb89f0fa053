"""What concerns several ranks.

agreement.py    what the ranks settle before the first step, at a cost that no rank count changes
rank_group.py   which ranks watch together; a process group of trimtab's own
rank_sync.py    the meeting in every `optimizer.step()`
rank_vote.py    a decision that is the same on all ranks; the largest loss with its rank
shards.py       local parts of sharded tensors, and how many ranks hold the same part
replicas.py     which plain parameters are replicas and which are a rank's own
"""
