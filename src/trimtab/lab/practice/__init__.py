"""Practice: a run with or without a fault; a learner decides what to do and sees the result.

exercise.py   Exercise: which run, and at which step the learner decides
answers.py    the answers a learner can give
remedies.py   what each answer changes in the run
replay.py     trains the run, and each answer from a checkpoint to the end
scoring.py    the cost and the score of each answer
view.py       what is printed
write_up.py   the learner's post-mortem and its comparison with trimtab's
"""
