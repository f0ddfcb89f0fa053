"""Recorder: the numbers of a step become a record of the journal; on the first rank alone.

What it writes is judged by the observer, a process of its own (`journal.observer_process`).
"""

import math
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from threading import Thread
from typing import Any, Literal

from trimtab.core import signals
from trimtab.core.block import Block, Record
from trimtab.core.config import Config
from trimtab.core.incidents import Incident
from trimtab.core.signals import Quality
from trimtab.core.text import counted
from trimtab.core.token_losses import NUM_BINS, shares
from trimtab.journal import JournalWriter, RunDirectory, read_journal
from trimtab.journal.exit_request import announce_run, supervisor_folder
from trimtab.journal.observer_process import Callbacks, NoObserver, ObserverProcess
from trimtab.journal.resume.journal_past import JournalPast
from trimtab.live.host.bad_data import BadData
from trimtab.live.host.batch_memory import BatchMemory
from trimtab.live.host.resume_facts import ResumeFacts, report_audit
from trimtab.live.host.rollback import RollbackEffect
from trimtab.live.ranks.exchange import TrainStep
from trimtab.live.shield import Shield, log

POST_CLIP_ADVICE = (
    "the gradient norm is seen after clipping only; use guard.clip_grad_norm_(...) or "
    "guard.record(grad_norm=...)"
)

CLIPPED_BEFORE_ADVICE = 5
"""Norms at one ceiling before the user is advised: by chance two or three may coincide."""

OBSERVER_SECONDS = 1.0
"""From one look at the observer's pipe to the next."""

LAST_SECONDS = 10.0
"""How long closing waits until the last records are judged. Chosen: an observer that has just been
started needs a second, on a busy machine several."""

RECENT_RECORDS = 512
"""Records that are kept to tell whether an undo helped, and which data a relaunch leaves out."""

HIGHER = 1.1
"""A loss above that of the last telemetry by this factor: its token losses are worth recording."""

MAX_UNRECORDED = 20
"""Updates in a row that no rank has recorded before the log says so."""


_TOLERANCE = 1e-4
"""`clip_grad_norm_` divides by norm + 1e-6, so a clipped norm is short of the clip value by a
millionth of its size and by rounding, which in half precision is larger."""

_ROUND_TOLERANCE = 1e-5
"""How near to a round number a norm has to be at its first touch. Tighter, because any norm may
come near one by chance: at 1e-4 one unclipped run in ten had such a norm."""


class ClipDetector:
    """Finds the one value that norms reach and never pass: they were clipped before we saw them.

    An optimizer hook runs after the user's own clipping, so a clipped gradient shows the clip value
    and nothing of its true size. A norm below the clip value was not touched and is true.
    """

    def __init__(self) -> None:
        self._largest = 0.0
        self.num_clipped = 0
        """Norms at the present ceiling; a larger norm shows that there was none."""

    def is_clipped(self, norm: float) -> bool:
        """Whether this norm sits at the largest value so far."""
        if not math.isfinite(norm) or norm <= 0 or norm < self._largest * (1 - _TOLERANCE):
            return False
        if norm <= self._largest * (1 + _TOLERANCE):
            self.num_clipped += 1
            return True  # the largest so far, a second time
        self._largest = norm
        self.num_clipped = int(_is_round(norm))
        return self.num_clipped > 0


def _is_round(norm: float) -> bool:
    """Whether the norm is a number that people write: clip values have one or two digits.

    By chance 8 in 10,000 norms are; one that is also the largest so far is then taken for clipped,
    which loses a value and records nothing false.
    """
    written = float(f"{norm:.1e}")
    return abs(norm - written) <= _ROUND_TOLERANCE * written


class Recorder:
    """Writes the journal of a run, and hears its observer."""

    is_recording: Literal[True] = True
    """Whether this rank records; False of a `NoRecorder`."""

    def __init__(
        self,
        run: RunDirectory,
        config: Config,
        manifest: Mapping[str, Any],
        *,
        first_step: int,
        batches: BatchMemory,
        shield: Shield,
        on_incident: Callable[[Incident], None] | None = None,
        observer: bool = True,
        rollback: RollbackEffect | None = None,
        give_up_after: Callable[[int], None] | None = None,
    ) -> None:
        self.run = run
        earlier = read_journal(run, find_damage=False).block if run.exists() else Block.empty()
        self.past = _past(earlier, first_step)
        """What the journal says about the state that the run resumes from."""
        self.bad_data = BadData.of_events(earlier.events)
        """The batches that earlier attempts were relaunched because of, or rolled back."""
        self._rollback = rollback
        """What a rollback changes; None once it has begun."""
        self._give_up_after = give_up_after
        if rollback is not None:
            marks = dict(rollback.conditions.bad_data)
            self.bad_data = BadData({**self.bad_data.marks, **marks})
        self._resume: ResumeFacts | None = None
        self._is_planned = False
        """Whether a change was announced since the start."""
        self.attempt = int(earlier.attempt[-1]) if len(earlier) else 0
        """Number of times that the run went back to an earlier step."""
        self._num_repeated = len({step for step in earlier.step.tolist() if step >= first_step})
        """Steps of earlier launches that this one takes again; 0 once that is said."""
        self._last_clock: float | None = None
        self._last_step, self._last_tick = first_step - 1, -1
        self._recent: deque[Record] = deque(maxlen=RECENT_RECORDS)
        self._batches = batches
        self._shield = shield
        self._clip_detector = ClipDetector()
        self._has_advised = False
        self._num_unrecorded = self._num_elsewhere = 0
        self._has_unrecorded = False
        self._telemetry_loss = math.nan
        """The loss of the last step with telemetry."""
        self._next_check = 0.0
        self.num_records = self.num_discarded = self.num_nonfinite = 0
        self._manifest = manifest
        self._manifest_writer = Thread()
        self.journal = JournalWriter(run)
        self._num_dropped = 0
        self._journal_error: Exception | None = None
        """What the journal has lost, and why it cannot be written, as the log has it."""
        try:
            run.write_manifest(manifest)
            announce_run(run)
            if len(earlier):
                self.attempt += int(first_step <= earlier.step[-1])
                self.event("resume", first_step, {"last_step": int(earlier.step[-1])})
            self._observer: ObserverProcess | NoObserver = NoObserver()
            if observer:
                self._observer = ObserverProcess(
                    run,
                    Callbacks(on_incident),
                    self._batches.freeze,
                    stall_seconds=config.ship.stall_seconds,
                )
        except BaseException:
            self.journal.close("could not start", seconds=1.0)
            raise

    @property
    def num_incidents(self) -> int:
        return len(self._observer.incidents)

    @property
    def num_changes(self) -> int:
        return self._observer.num_changes

    @property
    def incidents(self) -> tuple[Incident, ...]:
        """The incidents that the observer has found, up to a second ago."""
        self._check_observer()
        return self._observer.incidents

    @property
    def recent(self) -> Sequence[Record]:
        return list(self._recent)

    def number_of(self, train_step: TrainStep) -> int:
        """The number of a step, with those counted that only other ranks have recorded; of the
        update, as long as nothing was recorded."""
        num_updates = 0 if self.num_records else self._num_unrecorded
        return train_step.step + self._num_elsewhere + num_updates

    def audit(self, resume: ResumeFacts) -> None:
        """Compare the first records with the state that was saved."""
        self._resume = resume

    def note_dtype(self, dtype: str | None) -> None:
        """Complete the manifest by the format in which the first loss was computed."""
        if dtype is not None and self._manifest.get("dtype") is None:
            whole = {**self._manifest, "dtype": dtype}
            # In a thread: a step does not wait for a disk.
            write = partial(self._shield.call, "manifest", self.run.write_manifest, whole)
            self._manifest_writer = Thread(target=write, name="trimtab-manifest", daemon=True)
            self._manifest_writer.start()

    def catch_up(self) -> bool | None:
        """Return whether the verdicts on checkpoints are of this moment; waits a little.

        None if this launch has no observer.
        """
        is_current = self._observer.catch_up(self._last_tick)
        return is_current if self._observer.is_judging else None

    def record(self, train_step: TrainStep, numbers: Mapping[str, float]) -> None:
        self._num_unrecorded = 0
        step = self._last_step = self.number_of(train_step)
        self._num_elsewhere += int(not train_step.is_recorded_here)
        values = dict(numbers)
        norm = values.get(signals.GRAD_NORM)
        if (
            train_step.norm_is_after_clip
            and norm is not None
            and self._clip_detector.is_clipped(norm)
        ):
            values[signals.CLIPPED_GRAD_NORM] = values.pop(signals.GRAD_NORM)
            self.journal.quality(signals.CLIPPED_GRAD_NORM, Quality.POST_CLIP)
            if self._clip_detector.num_clipped >= CLIPPED_BEFORE_ADVICE and not self._has_advised:
                self._has_advised = True
                log.warning("trimtab: %s", POST_CLIP_ADVICE)
        # What the user has measured stands: `max_attention_logit` may be both.
        found = {
            **values,
            **train_step.user_signals(),
            signals.CLOCK: train_step.clock,
            **train_step.signals,
        }
        found |= self._derive(found)
        if train_step.row_losses:
            found |= self._token_losses(train_step, found)
        if self._resume is not None:
            self._compare_with(self._resume, step, found)
        tick = self._last_tick = self.journal.append(
            step, found, self.attempt, train_step.data_position
        )
        record = Record(
            step=step,
            tick=tick,
            signals=found,
            attempt=self.attempt,
            data_position=train_step.data_position,
        )
        self._batches.add(record, train_step)
        self.num_records += 1
        self.num_discarded += int(found.get(signals.DISCARDED) == 1.0)
        size = found.get(signals.LOSS, 0.0) + found.get(signals.GRAD_NORM, 0.0)
        self.num_nonfinite += int(not math.isfinite(size))
        self._recent.append(record)
        self._check_journal(step)
        now = time.monotonic()
        if now >= self._next_check:
            self._next_check = now + OBSERVER_SECONDS
            self._check_observer()

    def _token_losses(self, train_step: TrainStep, found: Mapping[str, float]) -> dict[str, float]:
        """Return the histogram of token losses: with telemetry, and where the loss is higher."""
        loss = found.get(signals.LOSS, math.nan)
        if not train_step.has_telemetry and not loss > HIGHER * self._telemetry_loss:
            return {}
        if train_step.has_telemetry:
            self._telemetry_loss = loss
        counts = [copy.read()[-NUM_BINS:] for copy in train_step.row_losses]
        return shares([sum(column) for column in zip(*counts, strict=True)])

    def unrecorded(self, train_step: TrainStep) -> None:
        """An update that no rank has recorded: the first is an event, the 20th a warning."""
        self._num_unrecorded += 1
        self.num_discarded += int(train_step.numbers.get(signals.DISCARDED) == 1.0)
        if not self._has_unrecorded:
            self._has_unrecorded = True
            self.event("unobserved step", train_step.step, {})
        if self._num_unrecorded == MAX_UNRECORDED:
            log.warning(
                "trimtab: %d steps in a row without a record; call guard.record(loss=...) before "
                "every optimizer.step()",
                MAX_UNRECORDED,
            )

    def event(self, kind: str, step: int, facts: Mapping[str, Any]) -> None:
        self.journal.add_event(kind, step, facts)
        self._is_planned = self._is_planned or kind == "planned change"

    def close(self, how: str) -> None:
        """End the journal, and wait, bounded, until the observer has written its files."""
        if self._manifest_writer.is_alive():
            self._manifest_writer.join(1.0)
        self.journal.close(how)
        self._check_journal(self._last_step)
        with self._shield.guarding("last incidents"):
            # The batches of an incident in the last steps are to be in its post-mortem.
            self._observer.catch_up(self._last_tick, LAST_SECONDS)
            self._batches.close()
        with self._shield.guarding("observer"):
            self._observer.close()

    def summary(self) -> str:
        # Without an observer nobody has looked: "0 incidents" would sound like health.
        is_judged = self._observer.is_judging
        found = counted(self.num_incidents, "incident") if is_judged else "not judged yet"
        words = [f"{counted(self.num_records, 'step')} recorded", found]
        if self._num_unrecorded and not self.num_records:
            never = "guard.record(loss=...) was never called in training"
            words[0] = f"{counted(self._num_unrecorded, 'update')}, none recorded, as {never}"
        if self.num_discarded:
            words.append(f"{counted(self.num_discarded, 'step')} discarded")
        if self.journal.dropped:
            words.append(f"{self.journal.dropped} records LOST by the journal")
        return f"{', '.join(words)}; {self.run.home}"

    def _check_journal(self, step: int) -> None:
        """Log records that were lost and what the disk has said, once."""
        dropped, error = self.journal.dropped, self.journal.error
        if dropped and not self._num_dropped:
            log.warning("trimtab: the journal loses records from step %d on", step)
        if error is not None and self._journal_error is None:
            log.warning("trimtab: the journal cannot be written: %s", error)
        self._num_dropped, self._journal_error = dropped, error or self._journal_error

    def _check_observer(self) -> None:
        if not self._shield.is_down:
            with self._shield.guarding("observer"):
                self._observer.check()

    def _derive(self, found: Mapping[str, float]) -> dict[str, float]:
        """What follows from the numbers of a step and the clock of the one before."""
        derived = {}
        if self._last_clock is not None and found[signals.CLOCK] > self._last_clock:
            seconds = found[signals.CLOCK] - self._last_clock
            derived[signals.STEP_SECONDS] = seconds
            if signals.TOKENS in found:
                derived[signals.TOKENS_PER_SECOND] = found[signals.TOKENS] / seconds
        self._last_clock = found[signals.CLOCK]
        if signals.UPDATE_NORM in found and found.get(signals.LR, 0.0) > 0:
            derived[signals.UPDATE_PER_LR] = found[signals.UPDATE_NORM] / found[signals.LR]
        return derived

    def _compare_with(self, resume: ResumeFacts, step: int, found: dict[str, float]) -> None:
        """Name what a resume has not restored, in the record of a first step."""
        num_repeated, self._num_repeated = self._num_repeated, 0
        # `trimtab run` starts a program again on purpose, with a checkpoint or without.
        if num_repeated and not resume.is_resume and supervisor_folder() is None:
            log.warning(
                "trimtab: %s holds %s of an earlier launch, and this one begins at step %d without "
                "a checkpoint: they count as lost; if this is a new run, give it another run_dir",
                *(self.run.root, counted(num_repeated, "step"), step),
            )
        rollback, self._rollback = self._rollback, None
        if rollback is not None:
            with resume.shield.guarding("rollback"):
                rollback.begin(self.run, self.journal, self._give_up_after)
        report_audit(resume, self.journal, step, found, is_planned=self._is_planned)
        if resume.is_done or resume.shield.is_down:
            self._resume = None


def _past(earlier: Block, first_step: int) -> JournalPast | None:
    """What the journal says; None if it is empty, or so odd that it cannot be compared with."""
    try:
        return JournalPast.of(earlier, first_step) if len(earlier) else None
    except Exception:
        log.exception("trimtab: the journal cannot be read for the resume audit; it is left out")
        return None
