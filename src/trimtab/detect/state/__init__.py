"""Detectors of weights, optimizer state and numerics.

hard_limits.py  what is wrong by itself: not finite, exactly zero, a lost scale, logits, experts
jumps.py        norms that move further in one step than ever; a rule for each signal
norm_trend.py   weight norms that start to grow or shrink faster than before
"""
