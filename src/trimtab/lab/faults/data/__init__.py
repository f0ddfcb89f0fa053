"""Faults in the data: one file per fault, named by its number in the catalogue."""
