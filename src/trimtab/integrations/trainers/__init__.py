"""Adapters: a guard in a loop that belongs to a trainer.

adapter.py         what all of them share: start, data, what is replaced on the trainer, end
guard_file.py      what the guard needs to resume, in a checkpoint of the trainer
used_gradients.py  gradients that a trainer has not cleared yet
hf/                the Hugging Face Trainer and TRL
accelerate.py      a loop with an Accelerator
lightning/         the Lightning Trainer
torchtitan.py      torchtitan 0.3
torchtitan_checkpoints.py  its checkpoints: verdicts, and where to resume
"""
