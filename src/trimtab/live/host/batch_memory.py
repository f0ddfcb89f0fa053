"""BatchMemory: the token ids of the last batches, and how often the run has seen each token.

    add      the batch of a step; the oldest one leaves and is only counted
    freeze   the batches around a bad step stay, and what is unusual about them is written

Batches are frozen when a step is far from what is usual, before anybody has judged it, and when the
observer reports an incident. They are examined and written on threads; the user's tokenizer is
called in the one that trains, because most tokenizers must not be used by two at once.
Batches are host memory only and bounded; the counts take 8 bytes for each entry of the vocabulary.
"""

import dataclasses
import math
import statistics
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np

from trimtab.core.block import IntArray, Record
from trimtab.core.config import LiveConfig
from trimtab.core.errors import ConfigError
from trimtab.core.findings import Symptom
from trimtab.core.incidents import Incident
from trimtab.core.signals import GRAD_NORM, LOSS
from trimtab.core.token_losses import NUM_BINS
from trimtab.journal import RunDirectory
from trimtab.journal.batches.batch_report import MARGIN, BatchReport, Decode, KeptBatches, examine
from trimtab.journal.batches.files import write_batch
from trimtab.journal.batches.rows import KeptBatch, TokenRows, flat_tokens
from trimtab.journal.batches.tokens import count_tokens
from trimtab.live.measure.batch_facts import VALUES
from trimtab.live.ranks.exchange import TrainStep
from trimtab.live.shield import Shield, log

STEPS_AROUND, STEPS_BEFORE = 64, 192
"""Batches kept of an incident, and from before it to compare with. Source: shifts of the lab's data
mix are reported some 40 steps late."""

MAX_FROZEN = 4
"""Bad steps whose batches are kept at once; together they may take as much as the memory. With more
of them the oldest is not examined again."""

COUNT_AT_ONCE = 1 << 16
"""Tokens that are counted at once, and at least as many as the vocabulary has: to clear and add
its counts then costs less than to count."""

MAX_BYTES = 64 * 2**20
"""What the token ids may take at 4 bytes each; batches of open incidents may take as much again.
Chosen: 1,024 steps of 16,384 tokens."""

DATA_SYMPTOMS = (Symptom.ODD_TOKENS, Symptom.TEXT_CHANGED, Symptom.REPEATED_BATCH)


USUAL_RECORDS, FAR_LOSS, FAR_NORM = 64, 1.3, 4.0
"""A step is far from usual if it is not finite, or if its loss or its gradient norm is above all of
so many records before it, by more than the median times the factor less one. Chosen: spikes that a
person marks begin at 1.1 times the loss; a loop with noisy losses, such as one sequence a step, has
its own highest ones in the window."""

FREEZE_SECONDS = 60.0
"""Least time between two steps that are examined because they are far from usual, without an
incident: examining takes processor time of the training process. Chosen: a run that is bad for
longer has an incident by then."""


class UsualStep:
    """Tells a step that is far from the last ones, from its loss and gradient norm."""

    def __init__(self) -> None:
        self._recent = {name: deque[float](maxlen=USUAL_RECORDS) for name in (LOSS, GRAD_NORM)}
        self._limits = dict.fromkeys((LOSS, GRAD_NORM), math.inf)
        self._num_records = 0

    def is_far(self, record: Record) -> bool:
        """Return whether this record is far from those before it, and remember it."""
        self._num_records += 1
        far = False
        for name, recent in self._recent.items():
            value = record.signals.get(name)
            if value is not None:
                far = far or not value <= self._limits[name] or value == -math.inf
                if math.isfinite(value):
                    recent.append(value)
        if self._num_records % (USUAL_RECORDS // 4) == 0:
            self._learn()
        return far

    def _learn(self) -> None:
        for name, factor in ((LOSS, FAR_LOSS), (GRAD_NORM, FAR_NORM)):
            recent = self._recent[name]
            if len(recent) == USUAL_RECORDS:
                margin = (factor - 1) * abs(statistics.median(recent))
                self._limits[name] = max(recent) + margin


class _Examination:
    """Batches that are examined on a thread, and the report that is written by one.

    Between the two the training thread calls the user's tokenizer, if there is one.
    """

    def __init__(self, kept: KeptBatches, run: RunDirectory, shield: Shield) -> None:
        self._kept = kept
        self._run = run
        self._shield = shield
        self.onset_tick = kept.onset_tick
        self._report: BatchReport | None = None
        self._thread = self._start(self._examine)

    @property
    def is_done(self) -> bool:
        """Whether the thread has ended: the report is known, or written."""
        return not self._thread.is_alive()

    def wait(self) -> None:
        self._thread.join()

    def write(self, decode: Decode | None) -> None:
        """Write the report once it is known, with text if the user allows it; does not wait."""
        if self._report is not None and decode is not None:
            try:
                self._report = self._report.decoded(decode)
            except Exception:  # the user's code
                log.warning("trimtab: the tokenizer failed; tokens are shown by id", exc_info=True)
        self._thread = self._start(self._write)

    def _start(self, work: Callable[[], None]) -> threading.Thread:
        thread = threading.Thread(target=work, name="trimtab-batches", daemon=True)
        thread.start()
        return thread

    def _examine(self) -> None:
        with self._shield.guarding("examination"):
            self._report = examine(self._kept)

    def _write(self) -> None:
        with self._shield.guarding("writing"):
            if self._report is not None:
                write_batch(self._run, self._report)


class BatchMemory:
    """Keeps batches and examines them; on the first rank, so it knows that rank's sequences."""

    def __init__(
        self,
        config: LiveConfig,
        run: RunDirectory,
        *,
        decode: Decode | None = None,
        shield: Shield | None = None,
        max_bytes: int = MAX_BYTES,
    ) -> None:
        """A memory for one run; its token ids take at most `max_bytes`, text needs `decode`."""
        self._run = run
        self._shield = shield or Shield("batch memory", "reports name no tokens")
        self._max_steps = config.batch_memory_steps
        self._max_bytes = max_bytes
        self._decode = decode
        self._usual = UsualStep()
        self._batches: deque[KeptBatch] = deque()
        self._num_bytes = 0
        self._counts: IntArray = np.zeros(0, dtype=np.int64)
        self._uncounted: list[TokenRows] = []
        self._num_uncounted = 0
        self._frozen: dict[int, KeptBatches] = {}
        """Batches around a bad step, by the tick of that step, until enough have followed."""
        self._examinations: list[_Examination] = []
        self._writing: list[_Examination] = []
        self._next_freeze = 0.0

    def add(self, record: Record, train_step: TrainStep) -> None:
        """Keep the batch of a step, if its token ids are known."""
        if not self._max_steps or self._shield.is_down:
            return
        self._shield.call("step", self._add_step, record, train_step)

    def _add_step(self, record: Record, train_step: TrainStep) -> None:
        if train_step.token_rows or train_step.row_losses:
            self._add(record, train_step)
        if not self._batches:
            return
        if self._usual.is_far(record) and time.monotonic() >= self._next_freeze:
            self._next_freeze = time.monotonic() + FREEZE_SECONDS
            self._freeze(record.tick, record.tick)
        if self._examinations:
            self._write_examined()

    def freeze(self, incident: Incident) -> None:
        """Keep the batches around the onset of an incident; more of them with every change."""
        if self._max_steps and not self._shield.is_down:
            with self._shield.guarding("incident"):
                self._freeze(_onset(incident), incident.peak.tick)

    def close(self) -> None:
        """Examine what is frozen with all that has followed, and wait until it is written."""
        with self._shield.guarding("reports"):
            for onset in list(self._frozen):
                self._extend(onset, self._frozen[onset].peak_tick)
                self._examine(self._frozen.pop(onset))
            while self._examinations:
                for examination in self._examinations:
                    examination.wait()
                self._write_examined()
                for examination in self._writing:
                    examination.wait()

    def _add(self, record: Record, train_step: TrainStep) -> None:
        losses = [
            np.array(copy.read()[:-NUM_BINS]).reshape(-1, VALUES) for copy in train_step.row_losses
        ]
        batch = KeptBatch(
            tick=record.tick,
            step=record.step,
            data_position=train_step.data_position,
            parts=train_step.token_rows,
            losses=tuple(losses),
            row_ids=train_step.row_ids,
        )
        self._batches.append(batch)
        self._num_bytes += batch.num_bytes
        while len(self._batches) > self._max_steps or self._num_bytes > self._max_bytes:
            self._forget(self._batches.popleft())
        for onset, kept in list(self._frozen.items()):
            if record.tick - onset == STEPS_AROUND:
                self._extend(onset, kept.peak_tick)
                self._examine(self._frozen[onset])

    def _freeze(self, onset: int, peak: int) -> None:
        if not self._batches:
            return  # they were never on the host
        near = [known for known in self._frozen if abs(onset - known) <= STEPS_AROUND]
        if near:
            self._extend(near[-1], peak)
            return
        if self._batches[0].tick > max(onset, peak):
            return
        self._frozen[onset] = self._freeze_first(onset, peak)
        self._examine(self._frozen[onset])
        if len(self._frozen) > MAX_FROZEN:
            self._frozen.pop(next(iter(self._frozen)))

    def _extend(self, onset: int, peak: int) -> None:
        """Keep the batches that have come since these were frozen."""
        earlier = self._frozen[onset]
        last = earlier.around[-1].tick if earlier.around else onset - MARGIN - 1
        later = [batch for batch in self._batches if batch.tick > last]
        around = self._within_limits([*earlier.around, *later], STEPS_AROUND)
        self._frozen[onset] = dataclasses.replace(
            earlier, peak_tick=max(peak, earlier.peak_tick), around=tuple(around)
        )

    def _examine(self, kept: KeptBatches) -> None:
        self._examinations.append(_Examination(kept, self._run, self._shield))

    def _write_examined(self) -> None:
        """Begin to write the reports that are known; those of one onset one after the other."""
        self._writing = [one for one in self._writing if not one.is_done]
        busy = {one.onset_tick for one in self._writing}
        for one in list(self._examinations):
            if one.is_done and one.onset_tick not in busy:
                self._examinations.remove(one)
                self._writing.append(one)
                one.write(self._decode)
            busy.add(one.onset_tick)

    def _freeze_first(self, onset: int, peak: int) -> KeptBatches:
        first = onset - MARGIN
        earlier = [batch for batch in self._batches if batch.tick < first]
        around = [batch for batch in self._batches if batch.tick >= first]
        before = self._within_limits(earlier[::-1], STEPS_BEFORE)[::-1]
        self._count()
        old = earlier[: len(earlier) - len(before)]
        counts = count_tokens([batch.tokens() for batch in old], len(self._counts))
        counts[: len(self._counts)] += self._counts
        return KeptBatches(
            onset_tick=onset,
            peak_tick=peak,
            before=tuple(before),
            around=tuple(self._within_limits(around, STEPS_AROUND)),
            counts=counts,
        )

    def _within_limits(self, batches: list[KeptBatch], max_steps: int) -> list[KeptBatch]:
        """The first of these batches: an incident may hold its part of the memory."""
        ends = np.cumsum([batch.num_bytes for batch in batches[:max_steps]])
        most = self._max_bytes // (2 * MAX_FROZEN)
        return batches[: max(int(np.searchsorted(ends, most, side="right")), 1)]

    def _forget(self, batch: KeptBatch) -> None:
        self._num_bytes -= batch.num_bytes
        self._uncounted += batch.parts
        self._num_uncounted += sum(rows.size for rows in batch.parts)
        if self._num_uncounted >= max(COUNT_AT_ONCE, len(self._counts)):
            self._count()

    def _count(self) -> None:
        counts = count_tokens([flat_tokens(self._uncounted)], len(self._counts))
        counts[: len(self._counts)] += self._counts
        self._counts, self._uncounted, self._num_uncounted = counts, [], 0


def _onset(incident: Incident) -> int:
    """Where to look: at the onset, or where the data was first found odd if that is far from it."""
    onset = incident.onset.tick
    odd = [finding.tick for finding in incident.findings if finding.symptom in DATA_SYMPTOMS]
    return odd[0] if odd and odd[0] - onset > STEPS_AROUND - 2 * MARGIN else onset


def find_decode(batch_text: Any) -> Decode | None:
    """Return what turns token ids into text; None if no text may be written."""
    if batch_text is None:
        return None
    decode = getattr(batch_text, "decode", batch_text)
    if not callable(decode):
        raise ConfigError(
            "batch_text must be a tokenizer, that is an object with decode(ids), or a function "
            f"from ids to text; got {type(batch_text).__name__}"
        )
    found: Decode = decode
    return found
