"""Detectors of the state of model and optimizer.

nonfinite.py         NaN and infinite values
state_jumps.py       norms that move further in one step than ever; jump_rules.py has the limits
norm_trend.py        weight norms that grow or shrink faster than before
frozen.py            updates or gradients that are exactly zero
loss_scale.py        a loss scale that keeps falling, or never moves
attention_logits.py  attention logits beyond what softmax can use
"""
