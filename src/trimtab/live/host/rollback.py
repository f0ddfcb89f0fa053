"""RollbackEffect: what a rollback that a person has asked for changes in this launch.

The first rank reads the request; the others hear of it when the ranks agree to watch.
"""

import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, replace

from trimtab.core.errors import ConfigError, RestoreError
from trimtab.core.events import NOTE
from trimtab.core.text import counted, listed
from trimtab.journal import JournalWriter, RunDirectory
from trimtab.journal.checkpoints.index import CheckpointIndex
from trimtab.journal.resume import facts
from trimtab.journal.resume.facts import Facts
from trimtab.journal.rollback import FILE, LR_FACTOR, Conditions, Rollback
from trimtab.live.protect.rate_scale import RateScale
from trimtab.live.shield import log

_FACTOR = f"{facts.OPTION}{LR_FACTOR}"
"""What the audit compares the factor of the learning rate as: one more option of the groups."""


class RollbackEffect:
    """What was asked for, and what of it is in force; nothing in most runs."""

    def __init__(self, request: Rollback | None = None, first_step: int = 0) -> None:
        self._due = self.missed = None if request is None or request.is_taken else request
        if self._due is not None and self._due.step != first_step:
            self._due = None  # the launch does not begin at the checkpoint
        else:
            self.missed = None
        self.conditions = Conditions()
        if request is not None:
            self.conditions = request.in_force if self._due is None else request.conditions
        self.rates = RateScale(self.conditions.lr_factor)
        self._asked_for_sources = False

    @classmethod
    def read(cls, run: RunDirectory, first_step: int, *, can_change: bool) -> "RollbackEffect":
        """Read the request to a run, on the first rank; raises ConfigError if it must change
        updates and this launch cannot."""
        try:
            effect = cls(Rollback.read(run.home), first_step)
        except RestoreError as error:
            log.warning("trimtab: no rollback is made: %s", error)
            return cls()
        if (effect.rates.factor != 1.0 or effect.conditions.bad_data) and not can_change:
            raise ConfigError(
                "a rollback has left data out of this run or lowered its learning rate, for which "
                "it needs mode='protect', and no optimizer of DeepSpeed's own; ask for another "
                f"rollback, or remove {run.home / FILE}"
            )
        if (missed := effect.missed) is not None:
            path = missed.checkpoint
            with suppress(OSError, RestoreError):
                index = CheckpointIndex(run.home)
                path = str(index.path(missed.find(index)))
            log.warning(
                "trimtab: a rollback to step %d waits, and this launch begins at step %d: load %s "
                "(checkpoints.resume() and last_good_checkpoint() do), or remove %s",
                *(missed.step, first_step, path, run.home / FILE),
            )
        return effect

    @property
    def without_sources(self) -> tuple[str, ...]:
        """The sources whose data is not to be trained on; whoever asks leaves them out."""
        self._asked_for_sources = True
        return self.conditions.without_sources

    def to_text(self) -> str:
        """Return what the other ranks must know; the vote of the first one discards bad data."""
        return json.dumps(asdict(replace(self.conditions, bad_data=())))

    def hear(self, text: str) -> None:
        """Take what the first rank knows."""
        known = self.conditions.bad_data
        self.conditions = replace(Conditions.from_json(json.loads(text)), bad_data=known)
        self.rates.factor = self.conditions.lr_factor

    def expected(self) -> Facts:
        """Return what the resume audit is to find."""
        found = {} if self.missed is None else {facts.STEP: float(self.missed.step)}
        return {**found, _FACTOR: self.rates.factor}

    def found(self) -> Facts:
        """Return what has become of the factor."""
        return {_FACTOR: self.rates.applied}

    def begin(
        self, run: RunDirectory, journal: JournalWriter, give_up_after: Callable[[int], None] | None
    ) -> None:
        """Runs before the first record, on the first rank: the request is taken.

        `give_up_after` doubts the checkpoints that were saved after a step.
        """
        changed, request = self.conditions, self._due
        names = listed(changed.without_sources)
        if names and not self._asked_for_sources:
            log.warning(
                "trimtab: the rollback leaves out %s, and nothing here does: in a loop of your own "
                "ask guard.without_sources, in a trainer change its data",
                names,
            )
        if request is None:
            return
        if give_up_after is not None:
            give_up_after(request.step)
        what = f"rollback to step {request.step:,}, learning rate times {changed.lr_factor:g}"
        what += f", without {names}" if names else ""
        left_out = counted(len(changed.bad_data), "step")
        told = {"what": what, "by": "a person", "text": what, LR_FACTOR: changed.lr_factor}
        is_changed = replace(changed, bad_data=()) != replace(request.earlier, bad_data=())
        journal.add_event("planned change" if is_changed else NOTE, request.step, told)
        request.take(run.home)
        log.info("trimtab: %s; the data of %s is left out", what, left_out)
