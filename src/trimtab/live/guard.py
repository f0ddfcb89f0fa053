"""Guard: what the user holds while a run is watched."""

import json
import weakref
from collections.abc import Iterable, Iterator
from types import TracebackType
from typing import Any, Self

import torch
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel

from trimtab.core import signals
from trimtab.core.incidents import Incident
from trimtab.detect.resume.facts import DATA_POSITION, STATE_SAVED
from trimtab.live.loop.step_loop import Step, StepLoop
from trimtab.live.loop.step_monitor import StepMonitor
from trimtab.live.measure.numbers import Number, OddNumber
from trimtab.live.shield import log

RESERVED = frozenset(
    {
        *(signals.LOSS, signals.GRAD_NORM, signals.TOKENS, signals.CLIPPED_GRAD_NORM, signals.LR),
        *(signals.LOSS_SCALE, signals.DISCARDED, signals.MAX_RANK_LOSS, signals.MAX_LOSS_RANK),
        *(signals.PARAM_NORM, signals.UPDATE_NORM, signals.UPDATE_PER_LR, signals.ADAM_STEP),
        *(signals.ADAM_M_NORM, signals.ADAM_V_NORM, signals.GRAD_MOMENTUM_COSINE),
        *(signals.GRAD_TO_V_RMS, signals.ZERO_GRAD_SHARE, signals.FINGERPRINT),
        *(signals.UNIQUE_TOKEN_SHARE, signals.TOKEN_RARITY, signals.SHIFT_SHARE),
        signals.RESUME_AUDIT,
        *signals.CLOCKS,
    }
)
"""Signals that trimtab measures itself; a user's signal may not take their names."""


class Guard:
    """Watches a run; a bug in here stops a part of the guard, never the training loop."""

    def __init__(self, model: nn.Module, monitor: StepMonitor) -> None:
        self._model = model
        self._monitor = monitor
        self._ending = "closed"
        self._data_position = 0
        self._saved: int | None = None
        """The step whose state was journalled last."""
        self._reported: set[str] = set()
        """What has been logged already."""
        # A guard that is dropped, or never closed before the program ends, closes itself.
        self._finalizer = weakref.finalize(
            self, monitor.close, "the program ended without closing the guard"
        )

    @property
    def incidents(self) -> tuple[Incident, ...]:
        """The incidents of the run so far; empty on all ranks but the first."""
        recorder = self._monitor.recorder
        return () if recorder is None else recorder.incidents

    def record(
        self,
        *,
        loss: Number | None = None,
        tokens: Number | None = None,
        grad_norm: Number | None = None,
        eval_loss: Number | None = None,
        **metrics: Number,
    ) -> None:
        """Take the numbers of a micro-batch, before `optimizer.step()`.

        `loss` is undivided, `tokens` is what it is the mean of, `grad_norm` is from before
        clipping. Other signals are journalled as the first rank has them. A loss without a graph
        that is recorded in evaluation (`model.eval()`, `torch.no_grad()`) belongs to no step.
        """
        monitor = self._monitor
        if loss is not None and self._is_evaluation(loss):
            self._report_once(
                "trimtab: a loss recorded in evaluation mode or without gradients belongs to no "
                "training step and is left out; give it as record(eval_loss=...)"
            )
            loss = tokens = grad_norm = None
        if loss is not None:
            grew = monitor.begin_record(loss)
        if not monitor.is_watching:
            return
        with monitor.shields.user.guarding("record"):
            monitor.facts.note_loss_scale()
        if monitor.resume.is_before_first_record and loss is not None:
            with monitor.shields.resume.guarding("record"):
                monitor.resume.look_at_record()
        with monitor.shields.numbers.guarding("record"):
            if loss is not None:
                try:
                    monitor.meter.add_loss(loss, tokens, follows_backward=grew)
                except OddNumber as odd:
                    monitor.meter.num_losses += 1
                    self._report_once(f"trimtab: loss or tokens is not a number but {odd}")
            if grad_norm is not None:
                try:
                    monitor.meter.give_norm(grad_norm, is_from_user=True)
                except OddNumber as odd:
                    self._report_once(f"trimtab: grad_norm is not a number but {odd}")
        if eval_loss is not None:
            self._add(signals.EVAL_LOSS, eval_loss)
        for name, value in metrics.items():
            self._add(name, value)

    def clip_grad_norm_(self, max_norm: float) -> torch.Tensor:
        """Clip as `torch.nn.utils.clip_grad_norm_` does; the norm from before is returned.

        A guard that protects lets fused optimizers clip inside their update: between this call and
        `optimizer.step()` their gradients are still as they were.
        """
        monitor = self._monitor
        gate = monitor.gate
        squares = None
        if monitor.is_watching and not monitor.meter.gradients.is_whole_on_every_rank:
            # Each rank clips by its part, as torch does; recorded is the norm over all of them.
            with monitor.shields.numbers.guarding("clip_grad_norm_"):
                squares = monitor.meter.gradients.squares(monitor.optimizers)
        if isinstance(self._model, FullyShardedDataParallel):
            norm = self._model.clip_grad_norm_(max_norm)
            squares = None
        elif gate is not None and not gate.has_parted and squares is None:
            norm = gate.clip.clip(max_norm)
        else:
            norm = torch.nn.utils.clip_grad_norm_(self._model.parameters(), max_norm)
        monitor.note_clip()
        if monitor.is_watching:
            with monitor.shields.numbers.guarding("clip_grad_norm_"):
                if squares is None:
                    monitor.meter.give_norm(norm, is_from_user=False)
                else:
                    monitor.meter.give_squares_before_clip(squares)
        return norm

    def skip(self) -> None:
        """The step that was recorded is not taken: call it instead of `optimizer.step()`."""
        self._monitor.skip()

    def event(self, kind: str, **facts: Any) -> None:
        """Journal something that happened: an evaluation, a change of the data mix."""
        monitor = self._monitor
        if monitor.is_watching and monitor.recorder is not None:
            with monitor.shields.host.guarding("event"):
                monitor.recorder.event(kind, monitor.next_step, facts)
                if kind == "checkpoint":
                    # Whether the generators are saved at this very moment is not known.
                    self._journal_state(with_generators=False)

    def steps(
        self, loader: Iterable[Any], accumulate: int = 1, *, data_position: int | None = None
    ) -> Iterator[Step]:
        """Go through a loader in steps of `accumulate` batches.

        `data_position` is that of its first batch: after a resume, where the data continues.
        Without it an epoch continues the positions of the last one.
        """
        monitor = self._monitor
        start = self._data_position if data_position is None else data_position
        loop = StepLoop(loader, accumulate, start)
        resume = monitor.resume
        monitor.facts.loop = resume.loop = loop
        resume.position_is_given = data_position is not None
        self._ending = "left the loop"
        self._look_at_generators()
        for step in loop.run(lambda: monitor.next_step):
            self._look_at_generators()
            yield step
            monitor.end_step(step.number)
            self._data_position = step.data_position + len(step.batches)
        self._ending = "end of data"

    def state_dict(self) -> dict[str, Any]:
        """What belongs into a checkpoint: save it in the same moment as the rest.

        What the gate has learnt, the same on every rank; and what the state is like now (`audit`,
        as text), so that a resume from it can be checked. Reads the device.
        """
        gate = self._monitor.gate
        state: dict[str, Any] = {} if gate is None else {"gate": gate.rule.state_dict()}
        facts = self._journal_state(with_generators=True)
        return state if facts is None else {**state, "audit": json.dumps(facts)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a saved state; call it on every rank, before the first step."""
        gate = self._monitor.gate
        if gate is not None and "gate" in state:
            gate.rule.load_state_dict(state["gate"])
        if "audit" in state:
            with self._monitor.shields.resume.guarding("load_state_dict"):
                facts = self._monitor.resume.load(state["audit"])
                self._data_position = int(facts.get(DATA_POSITION, self._data_position))

    def close(self, how: str | None = None) -> None:
        """Write what is left, judge what is open, take every hook off again."""
        self._finalizer.detach()
        monitor = self._monitor
        if monitor.resume.loop is not None and self._saved != monitor.next_step:
            with monitor.shields.resume.guarding("close"):
                # Weights may have been exchanged since the last step; where the data is, is known.
                self._journal_facts(monitor.resume.collect_data())
        monitor.close(how or self._ending)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close(None if kind is None else f"raised {kind.__name__}")

    def _journal_state(self, *, with_generators: bool) -> dict[str, float] | None:
        """What the state is like now, also as an event; None if that cannot be found out."""
        monitor = self._monitor
        if not monitor.shields.resume.is_down:
            with monitor.shields.resume.guarding("state"):
                self._saved = monitor.next_step
                facts = monitor.resume.collect(self._saved, with_generators=with_generators)
                self._journal_facts(facts)
                return facts
        return None

    def _journal_facts(self, facts: dict[str, float]) -> None:
        monitor = self._monitor
        if monitor.is_watching and monitor.recorder is not None:
            monitor.recorder.event(STATE_SAVED, monitor.next_step, {"state": facts})

    def _look_at_generators(self) -> None:
        if self._monitor.resume.is_before_first_record:
            with self._monitor.shields.resume.guarding("steps"):
                self._monitor.resume.look_at_generators()

    def _is_evaluation(self, loss: Any) -> bool:
        """Whether a loss cannot be one that is trained on."""
        if isinstance(loss, torch.Tensor) and loss.requires_grad:
            return False
        return not torch.is_grad_enabled() or not self._model.training

    def _add(self, name: str, value: Any) -> None:
        """Take a signal of the user; one that cannot be taken costs only itself."""
        monitor = self._monitor
        if monitor.recorder is None:
            return
        if name in RESERVED or name.startswith((signals.GRAD_NORM_OF, signals.ACTIVATION_RMS)):
            self._report_once(f"trimtab: {name!r} is a signal of trimtab; give yours another name")
            return
        with monitor.shields.user.guarding("record"):
            try:
                monitor.facts.user.add(name, value)
            except OddNumber as odd:
                self._report_once(f"trimtab: {name!r} is not a number but {odd}", name)

    def _report_once(self, sentence: str, what: str | None = None) -> None:
        if (what or sentence) not in self._reported and len(self._reported) < 256:
            self._reported.add(what or sentence)
            log.warning("%s", sentence)


class NoGuard:
    """The guard of a run that is not watched: the same interface, and it does nothing."""

    incidents: tuple[Incident, ...] = ()

    def __init__(self, model: nn.Module, first_step: int) -> None:
        self._model = model
        self._next_step = first_step
        self._data_position = 0

    def record(self, **numbers: Any) -> None:
        """Do nothing."""

    def clip_grad_norm_(self, max_norm: float) -> torch.Tensor:
        """Clip as `torch.nn.utils.clip_grad_norm_` does."""
        if isinstance(self._model, FullyShardedDataParallel):
            return self._model.clip_grad_norm_(max_norm)
        return torch.nn.utils.clip_grad_norm_(self._model.parameters(), max_norm)

    def skip(self) -> None:
        """Do nothing."""

    def event(self, kind: str, **facts: Any) -> None:
        """Do nothing."""

    def steps(
        self, loader: Iterable[Any], accumulate: int = 1, *, data_position: int | None = None
    ) -> Iterator[Step]:
        """Go through a loader in steps of `accumulate` batches."""
        start = self._data_position if data_position is None else data_position
        for step in StepLoop(loader, accumulate, start).run(lambda: self._next_step):
            yield step
            self._next_step += 1
            self._data_position = step.data_position + len(step.batches)

    def state_dict(self) -> dict[str, Any]:
        """There is nothing to save."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Do nothing."""

    def close(self, how: str | None = None) -> None:
        """Do nothing."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        """Do nothing."""
