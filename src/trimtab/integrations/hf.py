"""Trimtab in the Hugging Face Trainer and in TRL: docs/integrations/huggingface.md.

trainer = Trainer(..., callbacks=[TrimtabCallback(mode="protect")])
trainer.train(resume_from_checkpoint=last_good_checkpoint(args.output_dir))
"""

from trimtab.core.errors import MissingExtra

try:
    import transformers  # noqa: F401
except ModuleNotFoundError as error:
    message = 'trimtab.integrations.hf needs transformers; run: pip install "trimtab[hf]"'
    raise MissingExtra(message) from error

from trimtab.integrations.trainers.hf.callback import TrimtabCallback
from trimtab.integrations.trainers.hf.checkpoints import last_good_checkpoint

__all__ = ["TrimtabCallback", "last_good_checkpoint"]
