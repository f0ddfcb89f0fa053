"""Trimtab in a loop with a Hugging Face Accelerator: docs/trainers.md.

    with watch(accelerator, model, optimizer, run_dir="runs/x1") as guard:
        ...
        guard.record(loss=loss, tokens=batch["labels"].ne(-100).sum())  # before backward

The loop is the user's, so it records its losses itself. What is easily forgotten comes from the
Accelerator: the scaler, the precision, the norm before clipping.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch import nn

from trimtab.core.config import Mode
from trimtab.core.errors import MissingExtra

try:
    import accelerate  # noqa: F401
except ModuleNotFoundError as error:
    message = "trimtab.integrations.accelerate needs accelerate"
    raise MissingExtra.of(message, "accelerate") from error

from trimtab.integrations.trainer_adapter import TrainerAdapter
from trimtab.live.deepspeed.engine import is_engine
from trimtab.live.guard import Guard, NoGuard

__all__ = ["watch"]


@contextmanager
def watch(
    accelerator: Any,
    model: nn.Module,
    optimizer: Any,
    *,
    run_dir: str | Path,
    mode: Mode | str = Mode.OBSERVE,
    **options: Any,
) -> Iterator[Guard | NoGuard]:
    """Watch a loop with an Accelerator; call it after `accelerator.prepare`.

    Args:
        accelerator: The Accelerator.
        model: The prepared model.
        optimizer: The prepared optimizer, or several.
        run_dir: The folder of the run.
        mode: "observe", "protect" or "recover".
        options: Other arguments of `trimtab.watch`.
    """
    adapter = TrainerAdapter(run_dir, mode, **options)
    step = (options.get("facts") or {}).get("step", 0)
    precision = accelerator.mixed_precision
    guard = adapter.start(
        model,
        optimizer,
        run_dir=run_dir,
        step=step,
        facts={"dtype": None if precision == "no" else precision},
        state={"scaler": accelerator.scaler},
    )
    if guard is None:
        yield NoGuard(model, step)
        return

    def clip_by_guard(original: Any, max_norm: float) -> Any:
        return accelerator.clip_grad_norm_(model.parameters(), max_norm)  # unscales first

    if not is_engine(model):  # which clips by itself, and has stepped when the loop clips
        adapter.replace(accelerator, "clip_grad_norm_", adapter.clip)
    adapter.replace(guard, "clip_grad_norm_", clip_by_guard)
    how = None
    try:
        yield guard
    except BaseException as error:
        how = f"raised {type(error).__name__}"
        raise
    finally:
        adapter.end(how)
