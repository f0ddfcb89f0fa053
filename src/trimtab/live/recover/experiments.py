"""Experiments: what a few forward passes on the remembered batches say about an incident.

    again             the same batch twice: are the bits of its loss the same?
    first_nonfinite   which weight, or which module with finite inputs, is not finite first
    fp32              the same batch without autocast
    half              which rows of the batch make its loss, by halving it

They are made when an incident opens, or at once after a step that was not finite, inside
`optimizer.step()`, forward and without gradients; in a run of one process with `batch_loss`.

They leave no trace: buffers, modes, attributes, gradients and random numbers are restored, also if
`batch_loss` raises, and it cannot take a step of an optimizer. Where it moves more than a forward
pass does, its name is logged and no more are made. A weight that it writes to is not restored.
"""

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from trimtab.core.events import EXPERIMENT
from trimtab.core.robust import median
from trimtab.core.text import counted, digits
from trimtab.live.host.recorder import Recorder
from trimtab.live.loop.step_monitor import StepMonitor
from trimtab.live.recover.traces import without_trace
from trimtab.live.shield import Shield, log
from trimtab.state.batches import RememberedBatches, copy_batch, map_tensors, num_rows, tensors_in
from trimtab.state.host_copy import detached

MAX_ROUNDS, EVERY = 8, 200
"""Rounds of experiments in a run, and steps between two of them: a round costs some 20 forward
passes, and an incident that lasts gives the same answers again."""

MAX_SECONDS = 60.0
"""After this no further experiment of a round is begun."""

MODULES_BEFORE = 4
"""Modules whose largest output is told beside the first that is not finite: whether values had been
growing towards the limit of their format."""

UNEQUAL = 1.5
"""Times the loss of the other half that one half must have to be looked into further, and times the
median of the other batches that is high. Chosen: both differ by a few percent in ordinary text."""

BatchLoss = Callable[[Any], torch.Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What an experiment has shown."""

    name: str
    answer: str
    """In one word, such as "precision"."""
    sentence: str
    loss: float | None = None
    """What `batch_loss` gave, where that is what was asked."""


@dataclass(slots=True)
class Laboratory:
    """Makes the experiments on a model and its loss."""

    model: nn.Module
    batch_loss: BatchLoss
    used_autocast: bool = field(default=False, init=False)

    @torch.no_grad()
    def loss(self, batch: Any) -> float:
        """Return the loss of a batch, always with the same random numbers."""
        torch.manual_seed(0)
        return float(self.batch_loss(copy_batch(batch)).detach().float().mean())

    def answers(self, batches: Iterable[Any]) -> Iterator[Answer]:
        """Make the experiments that apply, on the batch with the worst loss."""
        with self._noting_autocast(is_disabled=False):
            losses = [(self.loss(batch), batch) for batch in batches]
        loss, batch = max(losses, key=lambda pair: _badness(pair[0]))
        yield self._again(loss, batch)
        if not math.isfinite(loss):
            yield self._first_nonfinite(batch)
        if self.used_autocast:
            yield self._fp32(loss, batch)
        if _num_rows(batch) > 1:
            others = [other for other, known in losses if known is not batch]
            is_high = bool(others) and UNEQUAL * abs(median(others)) < loss < math.inf
            answer = self._half(batch)
            if is_high or answer.answer != "all":  # rows are no question where all batches are high
                yield answer

    def _again(self, loss: float, batch: Any) -> Answer:
        repeated = self.loss(batch)
        is_same = repeated == loss or (math.isnan(repeated) and math.isnan(loss))
        how = "the same bits" if is_same else f"{digits(repeated)}, not {digits(loss)}"
        return Answer(
            name="again",
            answer="same" if is_same else "differs",
            sentence=f"the same batch and weights, run again, give {how}",
            loss=loss,
        )

    def _first_nonfinite(self, batch: Any) -> Answer:
        broken = [n for n, p in self.model.named_parameters() if not _is_finite(detached(p))]
        if broken:
            more = f" and {len(broken) - 1} more" if len(broken) > 1 else ""
            sentence = f"{broken[0]}{more} is not finite itself"
            return Answer(name="first_nonfinite", answer="weights", sentence=sentence)
        if not all(map(_is_finite, _tensors(batch))):
            sentence = "the batch itself is not finite"
            return Answer(name="first_nonfinite", answer="batch", sentence=sentence)
        found = self._first_module(batch)
        if found is None:
            sentence = "every module's output is finite, so the NaN arises in the loss itself"
            return Answer(name="first_nonfinite", answer="loss", sentence=sentence)
        name, before = found
        sentence = f"{name} is the first module with a non-finite output; its inputs are finite"
        if before:
            sizes = ", ".join(f"{digits(size)} in {module}" for module, size in before)
            sentence += f"; largest outputs before it: {sizes}"
        return Answer(name="first_nonfinite", answer="module", sentence=sentence)

    def _first_module(self, batch: Any) -> tuple[str, list[tuple[str, float]]] | None:
        """Return its name, and the largest outputs of the modules just before it."""
        found: list[str] = []
        before: deque[tuple[str, float]] = deque(maxlen=MODULES_BEFORE)

        def hook_of(name: str) -> Callable[[nn.Module, Any, Any], None]:
            def hook(module: nn.Module, inputs: Any, output: Any) -> None:
                # Inner modules come first: what contains them has their result.
                outputs = _tensors(output)
                if found:
                    return
                if not all(map(_is_finite, outputs)):
                    found.append(f"{name} ({type(module).__name__})")
                elif not any(True for _ in module.children()):
                    floats = (t for t in outputs if t.is_floating_point() and t.numel())
                    sizes = [float(t.abs().max()) for t in floats]
                    before.append((name, max(sizes, default=0.0)))

            return hook

        handles = [
            module.register_forward_hook(hook_of(name or "the model"))
            for name, module in self.model.named_modules()
        ]
        try:
            self.loss(batch)
        finally:
            for handle in handles:
                handle.remove()
        return (found[0], list(before)) if found else None

    def _fp32(self, loss: float, batch: Any) -> Answer:
        with self._noting_autocast(is_disabled=True):
            wide = self.loss(batch)
        if math.isfinite(loss):
            sentence = f"without autocast the loss is {digits(wide)}, with it {digits(loss)}"
            return Answer(name="fp32", answer="finite", sentence=sentence)
        in_range = math.isfinite(wide)
        how = "finite: a number leaves the range of the low precision" if in_range else "not finite"
        answer = "precision" if in_range else "other"
        return Answer(name="fp32", answer=answer, sentence=f"without autocast the loss is {how}")

    def _half(self, batch: Any) -> Answer:
        first, last = 0, _num_rows(batch)
        size = last
        while last - first > 1:
            middle = (first + last) // 2
            halves = [(first, middle), (middle, last)]
            try:
                losses = [self.loss(_rows(batch, *half)) for half in halves]
            except Exception:  # so few rows cannot be trained on: BatchNorm needs two
                break
            worse, better = sorted(zip(losses, halves, strict=True), key=lambda p: -_badness(p[0]))
            if not _badness(worse[0]) > UNEQUAL * abs(better[0]):
                break
            first, last = worse[1]
        if last - first > size // 4:
            sentence = f"no row stands out: the loss of this batch is spread over its {size} rows"
            return Answer(name="half", answer="all", sentence=sentence)
        which = f"row {first}" if last - first == 1 else f"rows {first} to {last - 1}"
        sentence = f"{which} of the {counted(size, 'row')} of a batch dominate its loss"
        return Answer(name="half", answer="rows", sentence=sentence)

    @contextmanager
    def _noting_autocast(self, *, is_disabled: bool) -> Iterator[None]:
        """Note whether `torch.autocast` is entered in here, and disable it if that is wanted.

        In this thread alone: others, such as a data loader's, go on as before.
        """
        enter: Any = torch.autocast.__enter__
        thread = threading.get_ident()

        def watched(autocast: Any) -> Any:
            if threading.get_ident() != thread:
                return enter(autocast)
            self.used_autocast = self.used_autocast or autocast._enabled
            was_enabled = autocast._enabled
            autocast._enabled = was_enabled and not is_disabled
            try:
                return enter(autocast)
            finally:
                autocast._enabled = was_enabled

        torch.autocast.__enter__ = watched  # type: ignore[method-assign]
        try:
            yield
        finally:
            torch.autocast.__enter__ = enter  # type: ignore[method-assign]


class Experiments:
    """Decides when experiments are made, and reports what they have shown."""

    def __init__(
        self, model: nn.Module, batch_loss: BatchLoss, monitor: StepMonitor, shield: Shield
    ) -> None:
        """Prepare the experiments of a run; `shield` catches what fails in `batch_loss` too."""
        self._model = model
        self._monitor = monitor
        self._laboratory = Laboratory(model, batch_loss)
        self.batches = RememberedBatches()
        self._shield = shield
        self._num_rounds = self._num_events = 0
        self._last_step = -EVERY
        self.refusal: str | None = None
        """What a forward pass has moved, if anything: then no experiments are made."""

    def remember(self, batch: Any) -> None:
        if not self._shield.is_down:
            with self._shield.guarding("remembering a batch"):
                self.batches.add(batch)

    def poll(self) -> None:
        """Make the experiments if something has happened since the last update."""
        monitor = self._monitor
        recorder, step = monitor.recorder, monitor.next_step
        is_alone = monitor.sync.ranks.world == 1  # a forward pass may need all ranks
        if not recorder.is_recording or self._shield.is_down or self.refusal or not is_alone:
            return
        with self._shield.guarding("experiments"):
            batches = list(self.batches)
            if self._is_due(recorder, step) and batches:
                self._num_rounds += 1
                self._last_step = step
                self._run(recorder, step, batches)

    def _is_due(self, recorder: Recorder, step: int) -> bool:
        """Return whether an incident has opened, or a step was not finite, since the last call."""
        before = self._num_events
        self._num_events = recorder.num_incidents + recorder.num_nonfinite
        has_time = self._num_rounds < MAX_ROUNDS and step >= self._last_step + EVERY
        return has_time and self._num_events > before

    def _run(self, recorder: Recorder, step: int, batches: list[Any]) -> None:
        end = time.monotonic() + MAX_SECONDS
        answers = []
        with without_trace(self._model) as moved:
            for answer in self._laboratory.answers(batches):
                answers.append(answer)
                if time.monotonic() > end:
                    break
        self.refusal = next(iter(moved), None)
        if self.refusal:
            log.warning(
                "trimtab: batch_loss changes %s, so no experiments are made with it", self.refusal
            )
            return
        for answer in answers:
            log.info("trimtab: experiment at step %d: %s", step, answer.sentence)
            facts: dict[str, Any] = {
                "name": answer.name,
                "answer": answer.answer,
                "sentence": answer.sentence,
            }
            facts |= {} if answer.loss is None else {"loss": answer.loss}
            recorder.event(EXPERIMENT, step, facts)


def _badness(loss: float) -> float:
    return loss if math.isfinite(loss) else math.inf


def _is_finite(tensor: torch.Tensor) -> bool:
    return not tensor.is_floating_point() or bool(torch.isfinite(tensor.detach()).all())


def _tensors(value: Any) -> list[torch.Tensor]:
    """Return the tensors in a batch or an output; none of a class that cannot be searched."""
    try:
        return tensors_in(value)
    except Exception:
        return []


def _num_rows(batch: Any) -> int:
    """Return the rows by which a batch can be cut; 0 if it cannot."""
    try:
        return num_rows(batch, of_all=True)
    except Exception:
        return 0


def _rows(batch: Any, first: int, last: int) -> Any:
    return map_tensors(batch, lambda tensor: tensor[first:last])
