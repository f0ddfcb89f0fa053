"""What a guard takes of the training thread, and its observer beside it: for benchmarks of cost.

The clock stands around what a training loop calls, not around parts of trimtab, so another version
is measured by PYTHONPATH=OTHER_CHECKOUT/src.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn

from benchmarks.scale.processes import processor_seconds


class Entrances:
    """The thread time inside `guard.record`, `guard.clip_grad_norm_` and the optimizer's hooks."""

    def __init__(self, guard: Any, optimizer: torch.optim.Optimizer) -> None:
        self._seconds = 0.0
        self._depth = 0
        for name in ("record", "clip_grad_norm_"):
            setattr(guard, name, self._timed(getattr(guard, name)))
        for hooks in (optimizer._optimizer_step_pre_hooks, optimizer._optimizer_step_post_hooks):
            for key, hook in list(hooks.items()):
                hooks[key] = self._timed(hook)

    def pop(self) -> float:
        seconds, self._seconds = self._seconds, 0.0
        return seconds

    @contextmanager
    def without_clipping(self) -> Iterator[None]:
        """Leave out torch's own clipping, which a loop without a guard does too."""
        clip = nn.utils.clip_grad_norm_
        nn.utils.clip_grad_norm_ = self._left_out(clip)
        try:
            yield
        finally:
            nn.utils.clip_grad_norm_ = clip

    def _timed(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any, **kwargs: Any) -> Any:
            self._depth += 1
            began = time.thread_time()
            try:
                return call(*args, **kwargs)
            finally:
                self._depth -= 1
                if not self._depth:
                    self._seconds += time.thread_time() - began

        return timed

    def _left_out(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def left_out(*args: Any, **kwargs: Any) -> Any:
            began = time.thread_time()
            try:
                return call(*args, **kwargs)
            finally:
                self._seconds -= time.thread_time() - began

        return left_out


class ObserverTime:
    """The processor time of the observer of a run, a child of this process."""

    def __init__(self, run_dir: Path) -> None:
        self._run_dir = str(run_dir)

    def seconds(self) -> float:
        """Return its processor time so far; raise LookupError if there is none."""
        return processor_seconds(self._pid())

    def _pid(self) -> int:
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                arguments = (folder / "cmdline").read_bytes().split(b"\0")
            except OSError:  # it has just ended
                continue
            if b"trimtab.observe" in arguments and self._run_dir.encode() in arguments:
                return int(folder.name)
        raise LookupError(f"no process observes {self._run_dir}")
