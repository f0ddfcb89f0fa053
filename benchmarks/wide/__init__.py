"""Runs on very many ranks: `scripts/bench wide`.

start_up.py     what each rank asks of the store before the first step, on a real TCPStore
__main__.py     the tables, and the time of the collectives by a stated model: arithmetic
"""
