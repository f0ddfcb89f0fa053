"""Faces: what a judged run looks like in a terminal, as a post-mortem, and as JSON."""
