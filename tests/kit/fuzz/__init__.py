"""Damaged inputs for everything that trimtab reads.

targets  what is read, by which function, and whole inputs to begin with
seeds    the whole inputs
damage   damage to bytes and to JSON values
session  one input after another: what came out, what is new
"""
