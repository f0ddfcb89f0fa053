"""Reinforcement learning in the lab: a small GPT learns to add by GRPO, with a known fault.

grpo         the task: prompts, answers, the verifier, a base policy that is right in a third of its
             answers;
             the trainer: rollouts of a copy of the policy, group advantages, a clipped objective;
             the faults R01 to R12: each changes one knob of the trainer at a step
"""
