"""Hard negatives: they look like a fault and are not.

batches.py     planned changes of batch size, sequence length and data mix
schedules.py   planned changes of the learning rate
pauses.py      evaluations and correct resumes
"""
