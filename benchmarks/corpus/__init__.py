"""Scanning a corpus and spreading its rare tokens: `scripts/bench corpus`.

scan_speed.py     tokens per second beside a bare `np.bincount`; 2e9 tokens in bounded memory
scan_places.py    the same result in processes, on a Ray cluster, and from killed jobs
spread_cost.py    what spreading costs
"""
