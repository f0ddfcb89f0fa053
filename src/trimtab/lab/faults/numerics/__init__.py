"""Faults in number formats, logits and the loss: one file per fault, named by its number."""
