"""What `hf`, `lightning`, `torchtitan` and `accelerate`, above this folder, share.

adapter.py              start, data, what is replaced on a trainer, what is saved for a resume, end
hf_recovery.py          the Hugging Face Trainer in `recover`: its data and counters
lightning_recovery.py   the same for Lightning
"""
