"""Healthy training runs of many kinds, most unlike pretraining: real optimisations of small models.

session          one run: random numbers, and `step` with the gate or without it
recording        a run whose records are kept, and faults that can be planted in it
kinds            what a kind is, its half, the loop that trains it, what kinds share
classification   classifiers and regression: rare classes, heavy tails, losses of 0
generative       GANs, diffusion, auto-encoders, contrastive learning
sequences        language models, speech, graphs, tables
policies         preferences and reinforcement

The gate (`scripts/bench gate`) and the judge (`scripts/bench judge`) are measured on them.
"""

from benchmarks.zoo import classification, generative, policies, sequences
from benchmarks.zoo.kinds import KINDS, half_of, train

__all__ = ["KINDS", "classification", "generative", "half_of", "policies", "sequences", "train"]
