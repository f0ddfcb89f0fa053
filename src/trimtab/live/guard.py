"""Guard: what the user holds while a run is watched; NoGuard: the same interface, doing nothing."""

import weakref
from collections.abc import Callable, Iterable, Iterator
from functools import partial, wraps
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar, cast

import torch
from torch import nn

from trimtab.core import signals
from trimtab.core.card import card, row
from trimtab.core.events import is_announced
from trimtab.core.incidents import Incident
from trimtab.core.text import printable
from trimtab.live.arithmetic import OddNumber, Scalar
from trimtab.live.host.no_recorder import NoRecorder
from trimtab.live.loop.step_monitor import StepMonitor
from trimtab.live.measure.loss_dtype import loss_dtype
from trimtab.live.measure.step_loop import LoaderSource, Step, StepLoop
from trimtab.live.measure.step_meter import Number
from trimtab.live.measure.user_events import plain_event
from trimtab.live.shield import Shield, log, never_compiled
from trimtab.live.step_iterator import CheckpointBoundary, NoMonitor, StateJournal, StepIterator
from trimtab.state.sharded_types import is_fsdp1

if TYPE_CHECKING:
    from trimtab.state.checkpoints.run_checkpoints import Checkpoints


Method = TypeVar("Method", bound=Callable[..., Any])


def entrance(method: Method) -> Method:
    """Let no error of trimtab out of a method that the user's loop calls.

    Such an error takes the guard out of the run, on all ranks, and the method returns None. Only
    what is meant for the user passes.
    """

    name = method.__name__

    @wraps(method)
    def guarded(guard: "Guard", /, *args: Any, **kwargs: Any) -> Any:
        return guard._monitor.entrance(f"guard.{name}", method, guard, *args, **kwargs)

    return cast("Method", guarded)


class LoopServices:
    """Serves a training loop whether or not it is watched: data in steps, checkpoints, an end."""

    def __init__(
        self,
        model: nn.Module,
        monitor: StepMonitor | NoMonitor,
        boundary: CheckpointBoundary,
        checkpoints: "Checkpoints | None",
    ) -> None:
        self._model = model
        self._is_fsdp1 = is_fsdp1(model)
        self._counter = monitor
        self._boundary = boundary
        self._checkpoints = checkpoints
        self._ending = "closed"
        self._source = LoaderSource(())
        self._iterator: StepIterator | None = None
        self._resumed_position = None if checkpoints is None else checkpoints.resumed.data_position
        """Where the data continues; None once it has."""

    @property
    def data_position(self) -> int:
        """The position of the next batch of `guard.steps`."""
        resumed = self._resumed_position
        return self._source.position if resumed is None else resumed

    def steps(
        self, loader: Iterable[Any], accumulate: int = 1, *, data_position: int | None = None
    ) -> Iterator[Step]:
        """Go through a loader in steps of `accumulate` batches.

        `data_position` is that of its first batch: after a resume, where the data continues.
        Without it an epoch continues the positions of the last one.
        """
        iterator = self.step_iterator(loader, accumulate, data_position=data_position)
        self._ending = "left the loop"
        try:
            while (step := iterator.next_step()) is not None:
                yield step
        finally:
            iterator.leave()
        self._ending = "end of data"

    def step_iterator(
        self,
        loader: Iterable[Any],
        accumulate: int = 1,
        *,
        batches: Iterable[Any] | None = None,
        data_position: int | None = None,
    ) -> StepIterator:
        """What `guard.steps` goes through, for a trainer with a loop of its own.

        `batches` are what the loader gives, where the trainer has begun to read it itself. Make one
        for each epoch, and ask it for every step.
        """
        resumed, self._resumed_position = self._resumed_position, None
        data_position = resumed if data_position is None else data_position
        if self._iterator is not None:
            self._iterator.end_step()
        monitor = self._counter
        monitor.entrance("guard.steps", monitor.note_generators)  # making an iterator may draw
        if batches is None:
            batches = loader if self._checkpoints is None else self._checkpoints.batches(loader)
        start = self._source.position if data_position is None else data_position
        self._source = LoaderSource(batches, start)
        loop = StepLoop(self._source, accumulate, loader)
        is_given = data_position is not None
        monitor.entrance("guard.steps", monitor.begin_loop, loop, position_is_given=is_given)
        self._iterator = StepIterator(loop, monitor, self._boundary)
        return self._iterator

    def close(self, how: str | None = None) -> None:
        """Wait for a checkpoint that is being saved."""
        self._boundary.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close(None if kind is None else f"raised {kind.__name__}")

    def _clip(self, max_norm: float) -> torch.Tensor:
        if self._is_fsdp1:
            norm: torch.Tensor = cast(Any, self._model).clip_grad_norm_(max_norm)
            return norm
        return torch.nn.utils.clip_grad_norm_(self._model.parameters(), max_norm)


class Guard(LoopServices):
    """Watches a run; a bug in here stops a part of the guard, never the training loop.

    Every method that a loop calls is an `entrance`. The user's own code (the loader, the optimizer,
    what saves a checkpoint) runs outside of them, and what it raises passes.
    """

    def __init__(
        self,
        model: nn.Module,
        monitor: StepMonitor,
        checkpoints: "Checkpoints | None" = None,
        *,
        watched: str,
    ) -> None:
        self._monitor = monitor
        self._watched = watched
        """What is watched, and how, in words."""
        self._states = StateJournal(monitor)
        # Not `self.state_dict`: in a reference cycle a guard that is dropped would be closed by the
        # garbage collector, in the middle of whatever step is under way then.
        boundary = CheckpointBoundary(
            checkpoints,
            monitor.shields.checkpoints,
            lambda: monitor.recorder,
            partial(_checkpoint_state, monitor, self._states),
            lambda: monitor.sync.trains,
        )
        super().__init__(model, monitor, boundary, checkpoints)
        trained = (p for p in model.parameters() if p.requires_grad)
        self._is_half_precision = any(parameter.dtype.itemsize < 4 for parameter in trained)
        self._reported: set[str] = set()
        """What has been logged already."""
        # A guard that is dropped, or never closed before the program ends, closes itself.
        ending = "the program ended without closing the guard"
        self._finalizer = weakref.finalize(self, monitor.close, ending)

    def __repr__(self) -> str:
        return self._monitor.shields.views.call("repr", self._summary) or object.__repr__(self)

    def _repr_html_(self) -> str | None:
        return self._monitor.shields.views.call("card", self._card)

    def _summary(self) -> str:
        return f"<Guard {self._watched}: {printable(self._so_far())}>"

    def _card(self) -> str:
        failed = self._monitor.shields.failed
        tone = "alarm" if failed else "warn" if self._monitor.recorder.num_incidents else ""
        return card(tone, f"trimtab {self._watched}", row("so far", self._so_far()))

    def _so_far(self) -> str:
        """Return what this process knows already: the device is not read, nobody is waited for."""
        monitor, failed = self._monitor, ", ".join(self._monitor.shields.failed)
        state = "closed" if monitor.is_closed else f"step {monitor.next_step:,} is next"
        done = monitor.recorder.summary()
        return "; ".join(filter(None, (state, failed and f"FAILED: {failed}", done)))

    @property
    def run_dir(self) -> Path | None:
        """The folder of the run, for `trimtab.diagnose`; None on all ranks but the first."""
        recorder = self._monitor.recorder
        return recorder.run.root if recorder.is_recording else None

    @property
    def incidents(self) -> tuple[Incident, ...]:
        """The incidents of the run so far; empty on all ranks but the first."""
        return self._monitor.entrance("guard.incidents", self._judged) or ()

    @property
    def without_sources(self) -> tuple[str, ...]:
        """The sources of data to leave out since `trimtab rollback`, equal on all ranks."""
        return self._monitor.rollback.without_sources

    def _judged(self) -> tuple[Incident, ...]:
        return self._monitor.recorder.incidents

    @never_compiled
    @entrance
    def record(
        self,
        /,
        *,
        loss: Number | None = None,
        tokens: Number | None = None,
        grad_norm: Number | None = None,
        eval_loss: Number | None = None,
        token_loss: torch.Tensor | None = None,
        row_loss: torch.Tensor | None = None,
        row_ids: Any = None,
        batch: Any = None,
        **metrics: Number,
    ) -> None:
        """Take the numbers of a micro-batch, before `optimizer.step()`.

        `loss` is undivided, `tokens` is what it is the mean of, `grad_norm` is from before
        clipping. `token_loss` has the loss of every token, [batch, sequence], `row_loss` that of
        every sequence, [batch]: reports then name the sequences with the highest loss, and by their
        numbers in the data if `row_ids` has them, [batch]. `batch` is what `batch_loss`
        takes: its fingerprint and the statistics of its tokens are recorded if it is on the host,
        and a few are remembered, so that "recover" can make experiments on them. Other signals
        are journalled as the first rank has them. A loss without a graph that is recorded in
        evaluation (`model.eval()`, `torch.no_grad()`) belongs to no step.
        """
        monitor = self._monitor
        monitor.num_calls += 1
        is_trained = isinstance(loss, torch.Tensor) and loss.requires_grad
        if loss is not None and not is_trained and self._is_evaluation():
            self._report_once(
                "trimtab: a loss recorded in evaluation mode or without gradients belongs to no "
                "training step and is left out; give it as record(eval_loss=...)"
            )
            loss = tokens = grad_norm = token_loss = row_loss = row_ids = None
        if loss is not None:
            grew = monitor.begin_record(loss)
        if not monitor.is_watching:
            return
        if monitor.facts.has_scaler:
            with monitor.shields.user.guarding("record"):
                monitor.facts.note_loss_scale()
        if loss is not None and monitor.num_losses == 1:
            with monitor.shields.resume.guarding("record"):
                monitor.resume.note_first_record()
                monitor.recorder.note_dtype(loss_dtype(loss))
        if loss is not None:
            count = None
            try:
                count = None if tokens is None else monitor.meter.count_of(tokens)
            except OddNumber as odd:
                self._report_odd("tokens", odd, "its loss counts, its tokens are not recorded")
            try:
                monitor.meter.add_loss(loss, count, follows_backward=grew)
            except OddNumber as odd:
                monitor.meter.count_odd_loss()
                self._report_odd("loss", odd, "it is left out, and the step's tokens with it")
        if grad_norm is not None:
            try:
                monitor.meter.set_norm(grad_norm, is_from_user=True)
            except OddNumber as odd:
                self._report_odd("grad_norm", odd, "it is left out")
        if eval_loss is not None:
            metrics = {signals.EVAL_LOSS: eval_loss, **metrics}
        token_loss = row_loss if token_loss is None else token_loss
        if row_ids is not None and monitor.recorder.is_recording:
            try:
                monitor.facts.add_row_ids(row_ids)
            except (TypeError, ValueError) as error:
                self._report_once(f"trimtab: {error}; got {type(row_ids).__name__}")
        if token_loss is not None and monitor.recorder.is_recording:
            with monitor.shields.batches.guarding("record"):
                try:
                    monitor.facts.row_losses.add(token_loss)
                except OddNumber as odd:
                    self._report_once(
                        f"trimtab: token_loss is not [batch, sequence] or [batch], but {odd}"
                    )
        if batch is not None:
            monitor.state_guard.remember(batch)
            if monitor.recorder.is_recording:
                monitor.facts.add_batch(batch)
        if metrics:
            with monitor.shields.user.guarding("record"):
                for name, value in metrics.items():
                    self._add(name, value)

    def clip_grad_norm_(self, max_norm: float) -> torch.Tensor:
        """Clip as `torch.nn.utils.clip_grad_norm_` does, in every mode; returns the norm before."""
        entrance, name = self._monitor.entrance, "guard.clip_grad_norm_"
        squares = entrance(name, self._squares_before_clip)
        norm = self._clip(max_norm)
        entrance(name, self._note_clip, norm, max_norm, squares)
        return norm

    def _squares_before_clip(self) -> Scalar | None:
        """Return the sum of squares over all ranks' gradients; None if torch's norm says it all.

        Where ranks hold different parts, each clips by its own as torch does, and recorded is the
        norm over all of them. In half precision torch's norm may overflow to infinity, which the
        gate would take for a broken gradient.
        """
        monitor = self._monitor
        if self._is_fsdp1 or not monitor.is_watching:
            return None
        is_whole = monitor.meter.gradients.is_whole_on_every_rank
        if is_whole and not (self._is_half_precision and not monitor.gate.has_left):
            return None
        return monitor.meter.gradients.squares(monitor.optimizers)

    def _note_clip(self, norm: torch.Tensor, max_norm: float, squares: Scalar | None) -> None:
        monitor = self._monitor
        gate, meter = monitor.gate, monitor.meter
        is_whole = meter.gradients.is_whole_on_every_rank and not self._is_fsdp1
        if is_whole and not gate.has_left:
            gate.note_clip(norm, max_norm)
        monitor.note_clip()
        if monitor.is_watching:
            if squares is None:
                meter.set_norm(norm, is_from_user=False)
            else:
                meter.set_squares_before_clip(squares)

    @entrance
    def skip_resume_audit(self) -> None:
        """Do not compare the start with a saved state, for a trainer that has loaded none."""
        self._monitor.resume.skip()

    @entrance
    def note_random_state(self) -> None:
        """For the resume audit: a trainer may restore random numbers after its first batch."""
        self._monitor.note_generators()

    @entrance
    def skip(self) -> None:
        """Call it instead of `optimizer.step()`: the recorded step is not taken."""
        self._monitor.skip()

    @entrance
    def event(self, kind: str = "", /, **facts: Any) -> None:
        """Journal something that happened: an evaluation, a change of the data mix.

        Facts may be anything. What is large or has no form in JSON is described in a few words; a
        tensor on a device is not read.
        """
        monitor = self._monitor
        monitor.num_calls += 1
        if monitor.is_watching and monitor.recorder.is_recording:
            with monitor.shields.user.guarding("event"):
                name, plain = plain_event(kind or facts.pop("kind", "event"), facts)
                monitor.recorder.event(name, monitor.next_step, plain)
                if is_announced(name):
                    monitor.state_guard.note_change()
                if name == "checkpoint":
                    # Whether the generators are saved at this very moment is not known.
                    self._states.save(with_generators=False)

    def checkpoint(self, step: int | None = None, *, if_due: bool = False) -> None:
        """Save a checkpoint, on all ranks, at the end of this step; raises ConfigError without any.

        In `guard.steps` that is when the next step is asked for, in a loop of your own it is now.
        `step` is the number of the next step, if it is not the one that the guard has counted.
        With `if_due` it is saved only when `every_steps` or `every_seconds` of the checkpoints
        have passed: for a loop of your own, at the end of each step.
        """
        self._boundary.request(step, self._monitor.next_step, if_due=if_due)

    @entrance
    def undo(self, updates: int = 1) -> None:
        """Restore weights and optimizer to a snapshot that is at least so many updates old.

        It happens in one of the next calls of `optimizer.step()`, on all ranks; the call of the
        first one counts. Data, schedulers and counters go on. Needs mode "recover".
        """
        self._monitor.state_guard.request(updates)

    def state_dict(self, *, with_random_state: bool = True) -> dict[str, Any]:
        """What belongs into a checkpoint: save it in the same moment as the rest.

        What the gate has learnt, and what the state is like now (`audit`), so that a resume from
        it can be checked. Reads the device. Some trainers do not save the random state.
        """
        with self._monitor.shields.resume.guarding("guard.state_dict"):
            return _checkpoint_state(
                self._monitor, self._states, with_random_state=with_random_state
            )
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a saved state; on every rank, before the first step."""
        self._monitor.gate.load_checkpoint(state)
        if "loop_step" in state:
            self._monitor.continue_loop(state["loop_step"])
        if "audit" in state:
            position = self._states.load(state["audit"])
            self._resumed_position = position if position is not None else self._resumed_position

    def close(self, how: str | None = None) -> None:
        """Write what is left, judge what is open, take every hook off again."""
        entrance, name = self._monitor.entrance, "guard.close"
        self._finalizer.detach()
        if self._iterator is not None:
            self._iterator.leave()
        try:
            if how is None:  # left the loop in a step that asked for a checkpoint
                self._boundary.save_if_wanted(self._monitor.next_step, None)
        finally:
            entrance(name, self._states.close)
            entrance(name, self._monitor.close, how or self._ending)
            entrance(name, self._boundary.close)

    def _is_evaluation(self) -> bool:
        """Whether a loss without a graph cannot be one that is trained on."""
        return not torch.is_grad_enabled() or not self._model.training

    def _add(self, name: str, value: Any) -> None:
        """Take a signal of the user; one that cannot be taken costs only itself."""
        monitor = self._monitor
        if not monitor.recorder.is_recording:
            return
        if signals.is_measured(name):
            self._report_once(f"trimtab: {name!r} is a signal of trimtab; give yours another name")
            return
        try:
            monitor.facts.user.add(name, value)
        except OddNumber as odd:
            self._report_once(f"trimtab: {name!r} is not a number but {odd}", name)

    def _report_odd(self, name: str, odd: OddNumber, consequence: str) -> None:
        what = "a count" if name == "tokens" else "a number"
        sentence = f"{name} is not {what} but {odd}"
        step = self._monitor.next_step
        self._report_once(f"trimtab: step {step}: {sentence}: {consequence}", f"odd {name}")

    def _report_once(self, sentence: str, what: str = "") -> None:
        if (what or sentence) not in self._reported and len(self._reported) < 256:
            self._reported.add(what or sentence)
            log.warning("%s", sentence)


def _checkpoint_state(
    monitor: StepMonitor, states: StateJournal, *, with_random_state: bool = True
) -> dict[str, Any]:
    """Return what a guard adds to a checkpoint: the gate's state and an audit of the run's."""
    state = monitor.gate.checkpoint_state()
    if monitor.loop_step != monitor.next_step:
        state["loop_step"] = monitor.loop_step
    audit = states.save(with_generators=with_random_state)
    return state if audit is None else {**state, "audit": audit}


class NoGuard(LoopServices):
    """The interface of a guard that does not watch; data, checkpoints and clipping work."""

    incidents: tuple[Incident, ...] = ()
    run_dir: Path | None = None
    without_sources: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return "<NoGuard: this run is not watched>"

    def __init__(
        self, model: nn.Module, first_step: int, checkpoints: "Checkpoints | None" = None
    ) -> None:
        shield = Shield("checkpoints", "they are not judged")
        boundary = CheckpointBoundary(checkpoints, shield, NoRecorder, dict)
        self._count = NoMonitor(first_step)
        super().__init__(model, self._count, boundary, checkpoints)

    def record(self, /, *, loss: Any = None, **numbers: Any) -> None:
        """Count a loss, so that steps are numbered as with a guard."""
        self._count.count_loss(loss)

    def clip_grad_norm_(self, max_norm: float) -> torch.Tensor:
        """Clip as `torch.nn.utils.clip_grad_norm_` does; returns the norm before."""
        return self._clip(max_norm)

    def skip_resume_audit(self) -> None:
        """Do nothing."""

    def note_random_state(self) -> None:
        """Do nothing."""

    def skip(self) -> None:
        """Do nothing."""

    def event(self, kind: str = "", /, **facts: Any) -> None:
        """Do nothing."""

    def checkpoint(self, step: int | None = None, *, if_due: bool = False) -> None:
        """Save a checkpoint, on all ranks, at the end of this step; outside of `guard.steps` no
        steps are counted, and `step` is needed."""
        self._boundary.request(step, None, if_due=if_due)

    def undo(self, updates: int = 1) -> None:
        """Do nothing."""

    def state_dict(self, *, with_random_state: bool = True) -> dict[str, Any]:
        """There is nothing to save."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Do nothing."""
