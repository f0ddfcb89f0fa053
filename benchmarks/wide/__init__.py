"""Runs on very many ranks: `scripts/bench wide`.

fake_world.py   collectives, bytes, memory and start-up of one rank in a fake process group
start_up.py     what each rank asks of the store before the first step, on a real TCPStore
__main__.py     the tables, and the time of the collectives by a stated model: arithmetic
"""
