"""The Hugging Face Trainer, and TRL's trainers that are built on it.

callback.py      `TrimtabCallback`: finds its Trainer when training begins
step_numbers.py  the undivided loss and the true token count of a micro-batch
counters.py      what a Trainer counts, to go back to
epochs.py        batches of an epoch, and epochs that keep their length after a rollback
checkpoints.py   the Trainer's checkpoints: verdicts, what the guard knows, where to resume
"""
