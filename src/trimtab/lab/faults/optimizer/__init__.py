"""Faults of the optimizer, its state and its schedule."""
