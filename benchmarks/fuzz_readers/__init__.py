"""Damaged inputs by the million, for everything that trimtab reads.

targets.py   what is read, by which function, and whole inputs to begin with
seeds.py     the whole inputs
damage.py    damage to bytes and to JSON values
session.py   one input after another: what came out, what is new
__main__.py  the command, and the table
"""
