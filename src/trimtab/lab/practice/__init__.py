"""Practice: a run with or without a fault; a learner decides what to do and gets the result.

exercise.py   Exercise: which run, at which step the learner decides, the answers and their scores
replay.py     trains the run, and each answer from a checkpoint to the end
view.py       what is printed; the learner's post-mortem and its comparison with trimtab's
"""
