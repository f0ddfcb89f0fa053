"""Hard negatives: what looks like a fault and is none."""
