"""Adapters: a guard in a loop that belongs to a trainer.

adapter.py    what all of them share: start, data, what is replaced on the trainer, end
lightning.py  the callback for the Lightning Trainer
"""
