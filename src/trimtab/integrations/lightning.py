"""For the Lightning Trainer: `L.Trainer(callbacks=[TrimtabCallback("runs/x1")])`."""

from trimtab.integrations.trainers.lightning import TrimtabCallback

__all__ = ["TrimtabCallback"]
