"""EngineHooks: where a step of an engine begins, asks and ends, in place of hooks on optimizers.

`engine.backward` and `engine.optimizer.step` of this one engine are replaced by functions that call
them. They hold the guard by weak references only, and everything of trimtab in them goes through an
`Entrance`: what fails there takes the guard out of the run, and the engine trains on.
"""

import math
import weakref
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from trimtab.core import signals
from trimtab.core.events import NOT_APPLIED
from trimtab.live.deepspeed.engine import Engine
from trimtab.live.deepspeed.seam import Question, running
from trimtab.live.loop.step_hooks import Hooks, StepHooks
from trimtab.live.shield import log

if TYPE_CHECKING:
    from trimtab.live.loop.step_monitor import StepMonitor

STEP, BACKWARD = "engine.optimizer.step", "engine.backward"
"""What is replaced, as the log names it."""

LOG_EVERY = 10
"""Of updates in a row that the engine skips the first is logged, then every 10th."""


class EngineLosses:
    """Records the loss of every `engine.backward`, unless the loop records losses itself."""

    def __init__(
        self, engine: Engine, record: Callable[..., None], listener: "StepMonitor"
    ) -> None:
        """`record` is a method of the guard."""
        self._steps = float(engine.engine.gradient_accumulation_steps())
        self._record_of = weakref.WeakMethod(record)
        self._num_recorded = 0
        original = _Replaced(engine.engine, "backward")
        listener_of = weakref.ref(listener)

        def backward(loss: Any, *args: Any, **kwargs: Any) -> Any:
            present = listener_of()
            if present is not None and not present.is_closed:
                present.entrance(BACKWARD, self._record, present, loss, args, kwargs)
            return original(loss, *args, **kwargs)

        self.remove = original.replace_by(backward)

    def _record(
        self, listener: "StepMonitor", loss: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        record = self._record_of()
        if record is None or listener.num_losses != self._num_recorded:
            return
        # Who has divided the loss already says so, by the second argument after it.
        is_whole = kwargs.get("scale_wrt_gas", args[1] if len(args) > 1 else True)
        if not is_whole:
            loss = loss.detach() * self._steps
        record(loss=loss)
        self._num_recorded = listener.num_losses


def hooks_of(engine: Engine | None) -> "Callable[[StepMonitor], Hooks]":
    """Return what makes the hooks of a run, with an engine or without."""
    if engine is None:
        return StepHooks
    return partial(PlainEngineHooks if engine.is_plain else EngineHooks, engine)


class PlainEngineHooks(StepHooks):
    """The hooks for an engine with a plain optimizer: those on the optimizer, and the losses."""

    def __init__(self, engine: Engine, listener: "StepMonitor") -> None:
        super().__init__(listener)
        self._engine = engine
        self._listener = weakref.ref(listener)
        self._removals: list[Callable[[], None]] = []

    def connect(self, record: Callable[..., None]) -> None:
        """Begin to record losses and norms, once the guard is there."""
        listener = self._listener()
        if listener is None:
            return
        self._removals.append(EngineLosses(self._engine, record, listener).remove)
        original = _Replaced(self._engine.engine, "clip_fp32_gradients")

        def clip() -> None:
            squares = None
            if (present := self._listener()) is not None and present.is_watching:
                squares = present.entrance(
                    "clip_fp32_gradients", present.meter.gradients.squares, present.optimizers
                )
            original()
            if present is not None and squares is not None:
                present.entrance(
                    "clip_fp32_gradients", present.meter.set_squares_before_clip, squares
                )

        self._removals.append(original.replace_by(clip))

    def remove(self) -> None:
        super().remove()
        for removal in self._removals:
            removal()
        self._removals.clear()


class EngineHooks:
    """Listens to an engine whose optimizer is one of DeepSpeed."""

    hides_gradients = True

    def __init__(self, engine: Engine, listener: "StepMonitor") -> None:
        self._engine = engine
        self._listener = weakref.ref(listener)
        self._kept: StepMonitor | None = None
        self._removals: list[Callable[[], None]] = []
        self._was_asked = False
        """Whether the optimizer has asked in the present update."""
        self._skipped_in_a_row = 0

    def register(self, optimizers: Any) -> None:
        for seam in self._engine.seams:
            seam.open()
            self._removals.append(seam.close)
        # Not `engine.step`: that is called for every micro-batch, and moves the schedule as well.
        original = _Replaced(self._engine.optimizer, "step")

        def step(*args: Any, **kwargs: Any) -> Any:
            listener = self._listener()
            if listener is None:
                return original(*args, **kwargs)
            self._was_asked = False
            with running(self.answer):
                result = original(*args, **kwargs)
            listener.entrance(STEP, self._end_update, listener)
            return result

        self._removals.append(original.replace_by(step))

    def connect(self, record: Callable[..., None]) -> None:
        if (listener := self._listener()) is not None:
            self._removals.append(EngineLosses(self._engine, record, listener).remove)

    def keep_alive(self, listener: "StepMonitor") -> None:
        self._kept = listener

    def deactivate(self) -> None:
        self.remove()

    def remove(self) -> None:
        self._kept = None
        for removal in reversed(self._removals):
            removal()
        self._removals.clear()

    def answer(self, is_invalid: Question, norm: Any) -> Any:
        """The optimizer asks whether to skip its update; only its first question is about all of
        it."""
        invalid = is_invalid(norm)
        listener = self._listener()
        if self._was_asked or listener is None:
            return invalid
        self._was_asked = True
        listener.entrance(STEP, listener.sampler.note_gradients)
        return self._decide(listener, norm, is_scaled=True) or invalid

    def _decide(self, listener: "StepMonitor", norm: Any, *, is_scaled: bool) -> bool:
        """Let the ranks exchange and the gate decide; return whether to skip the update."""
        gate: Any = listener.gate
        gate.discards = False
        listener.entrance(STEP, self._inspect, listener, norm, is_scaled=is_scaled)
        # Also if that failed: the other ranks count on what this one owes the exchange.
        listener.entrance(STEP, listener.carry_out, listener.optimizers[-1])
        return bool(gate.discards)

    def _inspect(self, listener: "StepMonitor", norm: Any, *, is_scaled: bool) -> None:
        if listener.is_watching:
            scale = self._engine.loss_scale
            if norm is not None:
                numbers = listener.meter.arithmetic
                value = numbers.number(norm)
                # A negative one stands for a norm that is not finite.
                value = numbers.where(value < 0, numbers.one * math.inf, value)
                listener.meter.set_norm(value / scale if is_scaled else value, is_from_user=True)
            if self._engine.has_loss_scale and listener.recorder.is_recording:
                listener.facts.user.add(signals.LOSS_SCALE, scale)
        listener.before_update(listener.optimizers[-1])

    def _end_update(self, listener: "StepMonitor") -> None:
        gate: Any = listener.gate
        if not self._was_asked:  # it has applied the update already, or skipped it
            gate.is_too_late = True
            norm = listener.entrance(STEP, self._last_norm)
            self._decide(listener, norm, is_scaled=False)
            gate.is_too_late = False
        if not gate.discards and not listener.is_out:
            listener.entrance(STEP, self._report_skip, listener)
        listener.entrance(STEP, listener.after_update, listener.optimizers[-1])

    def _last_norm(self) -> Any:
        """Return the norm of the update that was just made or skipped; None if it is not known.

        Before 0.19.7 it stays that of the update before where one is skipped.
        """
        has_skipped = self._engine.has_skipped
        known = getattr(self._engine.optimizer, "_global_grad_norm", None)
        return math.inf if has_skipped else known

    def _report_skip(self, listener: "StepMonitor") -> None:
        """Say that the engine has skipped an update by itself: DeepSpeed logs nothing of it."""
        if not self._engine.has_skipped:
            self._skipped_in_a_row = 0
            return
        self._skipped_in_a_row += 1
        recorder, step = listener.recorder, listener.next_step
        if not recorder.is_recording:
            return
        recorder.event(NOT_APPLIED, step, {"why": "skipped by DeepSpeed"})
        if self._skipped_in_a_row % LOG_EVERY == 1:
            log.warning(
                "trimtab: step %d: DeepSpeed skipped the update, its gradients are not finite; "
                "%d skipped so far",
                step,
                self._engine.engine.skipped_steps + 1,
            )


class _Replaced:
    """A method of one object, as it was found."""

    def __init__(self, owner: Any, name: str) -> None:
        self._owner = weakref.ref(owner)  # the object holds what replaces its method
        self._name = name
        self._found = vars(owner).get(name)
        """What the user has set on this object; None for the method of its class."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self._found is not None:
            return self._found(*args, **kwargs)
        owner = self._owner()
        return getattr(type(owner), self._name)(owner, *args, **kwargs)

    def replace_by(self, function: Callable[..., Any]) -> Callable[[], None]:
        """Set the function on the object; returns what undoes that."""
        owner = self._owner()
        setattr(owner, self._name, function)

        def undo() -> None:
            owner = self._owner()
            if owner is None or vars(owner).get(self._name) is not function:
                return  # what others have put on top stays
            if self._found is None:
                vars(owner).pop(self._name)
            else:
                setattr(owner, self._name, self._found)

        return undo
