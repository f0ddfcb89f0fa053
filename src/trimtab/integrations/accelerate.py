"""Trimtab in a loop with a Hugging Face Accelerator: docs/integrations/accelerate.md.

    with watch(accelerator, model, optimizer, run_dir="runs/x1") as guard:
        ...
        guard.record(loss=loss, tokens=batch["labels"].ne(-100).sum())  # before backward

The loop is the user's, so it records its losses itself. What is easily forgotten comes from the
Accelerator: the scaler, the precision, the norm before clipping, its count of micro-batches.
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
    message = (
        'trimtab.integrations.accelerate needs accelerate; run: pip install "trimtab[accelerate]"'
    )
    raise MissingExtra(message) from error

from trimtab.integrations.trainers.adapter import TrainerAdapter
from trimtab.live.guard import Guard
from trimtab.live.no_guard import NoGuard
from trimtab.live.shield import log

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
        mode: "observe", "protect" or "recover"; the last needs the scheduler in `state`, if
            there is one, and a loop over `guard.steps(loader, accumulate=...)`.
        options: Other arguments of `trimtab.watch`.
    """
    adapter = TrainerAdapter(run_dir, mode, **options)
    step = (options.get("facts") or {}).get("step", 0)
    precision = accelerator.mixed_precision
    micro_batches = _MicroBatches(accelerator)
    guard: Guard | None = None
    if str(accelerator.distributed_type).endswith("DEEPSPEED"):
        log.warning("trimtab: DeepSpeed clips and steps by itself, so this run is not watched")
    else:
        guard = adapter.start(
            model,
            optimizer,
            run_dir=run_dir,
            step=step,
            counters=micro_batches,
            facts={"dtype": None if precision == "no" else precision},
            state={"scaler": accelerator.scaler},
        )
    if guard is None:
        yield NoGuard(model, step)
        return

    def clip(original: Any, *arguments: Any, **more: Any) -> Any:
        norm = original(*arguments, **more)
        if norm is not None:
            guard.record(grad_norm=norm)
        return norm

    def clip_by_guard(original: Any, max_norm: float) -> Any:
        return accelerator.clip_grad_norm_(model.parameters(), max_norm)  # unscales first

    adapter.replace(accelerator, "clip_grad_norm_", clip)
    adapter.replace(guard, "clip_grad_norm_", clip_by_guard)
    if guard.recovery is not None:
        micro_batches.guard = guard
        adapter.replace(accelerator, "_do_sync", micro_batches.do_sync)
    how = None
    try:
        yield guard
    except BaseException as error:
        how = f"raised {type(error).__name__}"
        raise
    finally:
        adapter.end(how)


class _MicroBatches:
    """The Accelerator's count of micro-batches: by it, it knows when to update.

    It also updates at the last batch of a loader. The loader cannot say so again when that batch is
    served from the tape.
    """

    def __init__(self, accelerator: Any) -> None:
        self._accelerator = accelerator
        self.guard: Guard | None = None
        self._newest = -1
        """The highest data position that was trained on."""
        self._ends: set[int] = set()
        """Positions of the last batches of a loader."""

    def state_dict(self) -> dict[str, int]:
        """Return the count."""
        return {"step": self._accelerator.step}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Restore the count."""
        self._accelerator.step = state["step"]

    def do_sync(self, original: Any) -> None:
        """Replace `_do_sync`, which decides whether this micro-batch ends a step."""
        accelerator, state = self._accelerator, self._accelerator.gradient_state
        position = -1 if self.guard is None else self.guard.data_position - 1
        if position < 0 or position > self._newest:
            self._newest = position
            original()
            if state.end_of_dataloader:
                self._ends.add(position)
        elif state.sync_with_dataloader and position in self._ends:
            accelerator.step = 0
            state._set_sync_gradients(True)
        else:
            accelerator.step += 1
            state._set_sync_gradients(accelerator.step % state.num_steps == 0)
