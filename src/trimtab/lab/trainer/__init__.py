"""The reference trainer.

train.py          the training loop; reads top to bottom
train_config.py   its settings
engines.py        one process, or ranks with DDP
local_ranks.py    ranks as processes on this machine
checkpoints.py    saving and loading a run; what a fault goes by: its batches or its steps
intervention.py   Intervention, the base class of faults: when it acts, where it changes a run
"""
