"""The events of a journal that explanations and reports depend on."""

UNDO = "undo"
"""Weights and optimizer were restored from a snapshot. Facts: `why`, `tensor`, `updates_lost`, and
`is_hardware` where a bit flipped in memory."""

NOT_UNDONE = "harm not undone"
"""Harm was proven and not undone. Facts: `why`, `tensor`, `because`, `is_hardware`."""
