"""A run that has to recover, the same in each trainer.

job     what goes wrong in it, and what it leaves
runs    the run in each trainer
chains  data that a tiny model can learn
"""
