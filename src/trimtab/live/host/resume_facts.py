"""ResumeFacts: collects the facts of a state, and compares those of a resume with what was saved.

    watch, load_state_dict, steps   generators: a right resume shows in one of these moments
    first record                    scaler, data, generators
    first update                    weights, moments, counts, options, as they were loaded
    a saved state                   all of it, for the resume to come

Only the first steps of a process pass through here. What is on the device is copied without
waiting for it, except where the user saves a state.

What a resume has not restored goes to the log, to the journal and into the record.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch.optim import Optimizer

from trimtab.core import signals
from trimtab.core.block import Block
from trimtab.core.findings import Symptom
from trimtab.journal import AUDIT_EVENT, JournalWriter
from trimtab.journal.resume import facts
from trimtab.journal.resume.comparison import (
    LOST,
    Difference,
    compare_states,
    describe_difference,
    encode_differences,
    is_restarted,
)
from trimtab.journal.resume.facts import Facts
from trimtab.journal.resume.journal_past import JournalPast
from trimtab.live.host.rollback import RollbackEffect
from trimtab.live.measure.state_facts import PendingFacts, random_facts, scaler_facts, state_facts
from trimtab.live.measure.step_loop import StepLoop
from trimtab.live.shield import Shield, log

_TORCH = f"{facts.RNG}torch"


@dataclass(frozen=True, slots=True, kw_only=True)
class Audit:
    """The result of a comparison."""

    differences: tuple[Difference, ...]
    saved: Facts
    found: Facts


class ResumeFacts:
    """The facts of one process, as it starts and whenever its state is saved."""

    def __init__(
        self,
        optimizers: Sequence[Optimizer],
        scaler: Any,
        past: JournalPast | None,
        shield: Shield,
        *,
        first_step: int,
        rollback: RollbackEffect,
    ) -> None:
        """`past` is what the journal says; None if it is empty or another rank writes it.

        `rollback` is what a person has asked this launch to do.
        """
        self._optimizers = optimizers
        self._scaler = scaler
        self._past = past or JournalPast.of(Block.empty(), first_step)
        begins_at = 1 if self._past.first_step == 1 else 0
        self._is_resume = past is not None and first_step > begins_at
        self._is_resume |= rollback.missed is not None
        self._rollback = rollback
        self._first_step = first_step
        self.shield = shield
        self.world = 1
        self.loop: StepLoop | None = None
        """Only if the user goes through the data by `guard.steps`."""
        self.position_is_given = False
        self._loaded: Facts | None = None
        self._rng: list[Facts] = []
        """The generators, from `watch` on, whenever they may be as they were saved."""
        with shield.guarding("start"):
            self._rng.append(random_facts())
        self._at_record: PendingFacts | None = None
        self._at_update: PendingFacts | None = None
        self._batch: Facts | None = None
        self._saved: Facts | None = None
        """What the resume was compared with."""
        self._num_rates = 0
        """Records whose learning rate is still looked at."""
        self.is_done = False
        """Whether no record has anything more to say about the resume."""

    @property
    def is_resume(self) -> bool:
        """Whether a saved state was loaded, or steps go on where an earlier launch had come to."""
        return self._is_resume

    @property
    def is_before_first_record(self) -> bool:
        return self._at_record is None and not self.shield.is_down

    def load(self, text: str) -> Facts:
        """Take the facts that came with a checkpoint."""
        self._loaded = {str(name): float(value) for name, value in json.loads(text).items()}
        self._is_resume = True
        self.note_generators()
        return self._loaded

    def skip(self) -> None:
        """Compare nothing: the run goes on in the process that began it, with nothing loaded."""
        self._is_resume = False

    def note_generators(self) -> None:
        """One of the moments before the first batch is used."""
        if self.is_before_first_record:
            self._rng.append(random_facts())

    def note_first_record(self) -> None:
        """The first loss is recorded."""
        self._rng.append(random_facts())
        found = scaler_facts(self._scaler)
        loop = self.loop
        if loop is not None:
            if self.position_is_given:
                found.add(facts.DATA_POSITION, loop.data_position)
            if loop.loader_position is not None:
                found.add(facts.LOADER_POSITION, loop.loader_position - loop.num_loaded)
        self._at_record = found

    def before_update(self) -> None:
        """An update is about to happen; the first one is of the weights as they were loaded."""
        if self._at_update is None and self._at_record is not None and not self.shield.is_down:
            with self.shield.guarding("first update"):
                is_resume = self._is_resume
                self._at_update = state_facts(self._optimizers) if is_resume else PendingFacts()

    def compare(self, numbers: Mapping[str, float], *, is_planned: bool) -> Audit | None:
        """Compare, with the numbers of the record of a first step; None if there is nothing to say.

        The first audit has everything that was compared. A schedule that starts again may show in
        the steps after it.
        """
        if self._batch is None:
            mark = numbers.get(signals.FINGERPRINT)
            self._batch = {} if mark is None else self._past.locate(self._saved_step, mark)
        if self._at_record is None or self._at_update is None:
            return None
        lr = numbers.get(signals.LR)
        if lr is not None:  # that of the schedule is compared
            lr /= self._rollback.rates.factor
        if self._saved is not None:
            return self._compare_rate(lr, is_planned=is_planned)
        if not self._is_resume:
            self.is_done = True
            return None
        saved = self._saved = self._past.saved_at(self._saved_step, self._loaded)
        found = self._at_record.read() | self._at_update.read() | self._batch
        found |= {facts.STEP: float(self._first_step), facts.WORLD: float(self.world)}
        found |= self._generators(saved) | self._rollback.found()
        saved = {**saved, **self._rollback.expected()}
        differences = compare_states(saved, found, lr=lr, is_planned=is_planned)
        self._num_rates = facts.FIRST_LRS - 1
        self.is_done = any(item.symptom is Symptom.LR_RESTARTED for item in differences)
        return Audit(differences=tuple(differences), saved=saved, found=found)

    def _compare_rate(self, lr: float | None, *, is_planned: bool) -> Audit | None:
        saved = self._saved or {}
        self._num_rates -= 1
        restarted = not is_planned and lr is not None and is_restarted(saved, lr)
        self.is_done = restarted or self._num_rates == 0
        if lr is None or not restarted:
            return None
        difference = Difference(
            symptom=Symptom.LR_RESTARTED,
            severity=LOST,
            fact=facts.LR,
            found=lr,
            saved=saved[facts.LR],
        )
        return Audit(differences=(difference,), saved={}, found={})

    def collect(self, next_step: int, *, with_generators: bool) -> Facts:
        """The facts of the state as it is now; waits for the device."""
        found = state_facts(self._optimizers).read() | scaler_facts(self._scaler).read()
        found[facts.STEP] = float(next_step)
        first = self._first_rng
        if with_generators and first is not None:
            found[facts.FIRST_RNG] = first
        if with_generators:
            # A generator that nothing has drawn from need not be restored.
            start, now = self._rng[0], random_facts()
            found |= {name: now[name] for name in now if now[name] != start[name]}
        return found | self.collect_data()

    def collect_data(self) -> Facts:
        found: Facts = {facts.WORLD: float(self.world)}
        loop = self.loop
        if loop is not None:
            found[facts.DATA_POSITION] = float(loop.next_position)
            found[facts.AT_EPOCH_END] = float(loop.is_at_end)
            if loop.loader_position is not None:
                found[facts.LOADER_POSITION] = float(loop.loader_position)
        return found

    @property
    def _saved_step(self) -> int:
        loaded = {} if self._loaded is None else self._loaded
        return int(loaded.get(facts.STEP, self._first_step))

    @property
    def _first_rng(self) -> float | None:
        """Of the run: of this process, unless it is a resume."""
        saved = self._saved or self._loaded or {}
        own = None if self._is_resume or self._at_record is None else self._rng[-1][_TORCH]
        return saved.get(facts.FIRST_RNG, own)

    def _generators(self, saved: Mapping[str, float]) -> Facts:
        """For each saved generator its saved value if it was seen so, else what it was.

        Without `guard.steps` it may have been restored between two moments: then only a generator
        that repeats the start of the run was not.
        """
        found: Facts = {}
        for name in [name for name in saved if name.startswith(facts.RNG)]:
            seen = [moment[name] for moment in self._rng]
            repeats_start = name == _TORCH and seen[-1] == saved.get(facts.FIRST_RNG)
            if saved[name] in seen:
                found[name] = saved[name]
            elif self.loop is not None or repeats_start:
                found[name] = seen[-1]
        return found


def report_audit(
    resume: ResumeFacts,
    journal: JournalWriter,
    step: int,
    found: dict[str, float],
    *,
    is_planned: bool,
) -> None:
    """Compare the record of a first step with what was saved, and report what differs."""
    audit = None
    with resume.shield.guarding("record"):
        audit = resume.compare(found, is_planned=is_planned)
    if audit is None:
        return
    sentences = [describe_difference(difference) for difference in audit.differences]
    journal.event(AUDIT_EVENT, step, findings=sentences, saved=audit.saved, found=audit.found)
    if not sentences:
        log.info("trimtab: resume at step %d: everything compared continues", step)
        return
    found[signals.RESUME_AUDIT] = encode_differences(audit.differences)
    log.warning("trimtab: resume at step %d: %s", step, "; ".join(sentences))
