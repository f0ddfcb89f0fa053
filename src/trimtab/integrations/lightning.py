"""Trimtab in the Lightning Trainer: docs/integrations/lightning.md.

trainer = L.Trainer(callbacks=[TrimtabCallback("runs/x1", mode="protect")])
trainer.fit(model, loader, ckpt_path=last_good_checkpoint("runs/x1"))
"""

from trimtab.core.errors import MissingExtra

try:
    import lightning.pytorch  # noqa: F401
except ModuleNotFoundError as error:
    message = (
        'trimtab.integrations.lightning needs lightning; run: pip install "trimtab[lightning]"'
    )
    raise MissingExtra(message) from error

from trimtab.integrations.trainers.lightning.callback import TrimtabCallback
from trimtab.integrations.trainers.lightning.checkpoints import last_good_checkpoint

__all__ = ["TrimtabCallback", "last_good_checkpoint"]
