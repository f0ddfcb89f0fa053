"""Trimtab in a loop with a Hugging Face Accelerator: docs/integrations/accelerate.md.

with watch(accelerator, model, optimizer, run_dir="runs/x1") as guard:
    ...
    guard.record(loss=loss, tokens=batch["labels"].ne(-100).sum())  # before accelerator.backward
"""

from trimtab.core.errors import MissingExtra

try:
    import accelerate  # noqa: F401
except ModuleNotFoundError as error:
    message = (
        'trimtab.integrations.accelerate needs accelerate; run: pip install "trimtab[accelerate]"'
    )
    raise MissingExtra(message) from error

from trimtab.integrations.trainers.accelerate import watch

__all__ = ["watch"]
