"""Figures of an incident or a run.

symptoms, layers    an incident in numbers, as a whole and by layer
repeats             a batch that was served several times
cost                what an incident took
discards            steps that were kept from the weights
goodput             how much of a run was kept
comparison          how far apart two runs are
"""
