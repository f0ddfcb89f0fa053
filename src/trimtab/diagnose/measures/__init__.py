"""Figures of an incident or a run: symptoms, cost, goodput, layers, comparison."""
