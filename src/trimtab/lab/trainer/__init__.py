"""The reference trainer: the loop, its engines, checkpoints, and where a fault can reach in."""
