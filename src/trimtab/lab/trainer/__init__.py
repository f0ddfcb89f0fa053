"""The reference trainer.

train.py          the training loop; reads top to bottom
train_config.py   its settings
schedule.py       the learning rate
evaluation.py     the loss on held-out text
engines.py        one process, DDP, FSDP2 or HSDP
local_ranks.py    ranks as processes on this machine
checkpoints.py    saving and loading a run
intervention.py   Intervention: the base class of faults and hard negatives
run_clock.py      what a fault goes by: its data, the time, or the step
injection.py      the places where an intervention can change a run
"""
