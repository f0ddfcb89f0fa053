"""What concerns several ranks: reductions, votes, shards."""
