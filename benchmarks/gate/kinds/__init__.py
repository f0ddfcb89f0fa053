"""Kinds of healthy training runs that are unlike pretraining, a few thousand steps each.

registry         Kind, the two halves
classification   classifiers, metric learning
regression       heavy tails, physics, outliers
generative       GAN, VAE, diffusion
reinforcement    DQN, PPO, REINFORCE, GRPO
sequences        small language models
rare             minority data, rare classes, rare rewards
"""
