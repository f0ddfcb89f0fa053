"""Adapters: a guard in a loop that belongs to a trainer.

adapter.py      what all of them share: start, data, what is replaced on the trainer, end
hf/             the Hugging Face Trainer and TRL
accelerate.py   a loop with an Accelerator
lightning/      the Lightning Trainer
"""
