"""Healthy training runs of many kinds, most unlike pretraining: real optimisations of small models.

session          one run: random numbers, and `step`, which keeps its records and may plant a fault
records          the records of a run in a file
kinds            what a kind is, its half, the loop that trains it, what kinds share
classification   classifiers and regression: rare classes, heavy tails, losses of 0
generative       GANs, diffusion, auto-encoders, contrastive learning
sequences        language models, speech, graphs, tables
policies         preferences and reinforcement

`scripts/bench judge` trains them, and keeps their records for `scripts/bench gate`.
"""

from benchmarks.zoo import classification, generative, policies, sequences
from benchmarks.zoo.kinds import KINDS, half_of, train

__all__ = ["KINDS", "classification", "generative", "half_of", "policies", "sequences", "train"]
