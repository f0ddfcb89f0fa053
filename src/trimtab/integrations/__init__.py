"""Trimtab in other people's trainers and trackers.

trainers/     one adapter per trainer, on one interface
hf.py         `TrimtabCallback` for the Hugging Face Trainer and TRL
lightning.py  `TrimtabCallback` for the Lightning Trainer
torchtitan.py `watched`, an override for torchtitan

Nothing below this folder knows a trainer. Each module needs the package that it is named after.
"""
