"""Faults of number formats, logits and the loss."""
