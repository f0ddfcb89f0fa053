"""Faults in the optimizer, its state and its schedule: one file per fault, named by number."""
