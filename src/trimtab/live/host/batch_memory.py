"""BatchMemory: the token ids of the last batches, and how often the run has seen each token.

    add       the batch of a step; the oldest one leaves and is only counted
    freeze    the batches around an incident stay until its report is written
    reports   what is unusual about them

Batches are host memory only and bounded; the counts take 8 bytes for each entry of the vocabulary.
"""

import dataclasses
import threading
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from trimtab.core.block import IntArray
from trimtab.core.config import LiveConfig
from trimtab.core.errors import ConfigError
from trimtab.core.findings import Symptom
from trimtab.core.incidents import Incident
from trimtab.core.token_losses import NUM_BINS
from trimtab.journal.batches.batch_report import MARGIN, BatchReport, Decode, KeptBatches, examine
from trimtab.journal.batches.rows import KeptBatch, TokenRows, flat_tokens
from trimtab.journal.batches.tokens import count_tokens
from trimtab.live.measure.batch_facts import VALUES
from trimtab.live.ranks.exchange import StepNote
from trimtab.live.shield import Shield, log
from trimtab.report.incident_files import incident_folder_name, write_batch

STEPS_AROUND, STEPS_BEFORE = 64, 192
"""Batches kept of an incident, and from before it to compare with. Source: shifts of the lab's data
mix are reported some 40 steps late."""

MAX_FROZEN = 4
"""Incidents whose batches are kept at once; together they may take as much as the memory. With more
of them the oldest is examined before the run ends."""

COUNT_AT_ONCE = 1 << 16
"""Tokens that are counted at once, and at least as many as the vocabulary has: to clear and add
its counts then costs less than to count."""

MAX_BYTES = 64 * 2**20
"""What the token ids may take at 4 bytes each; batches of open incidents may take as much again.
Chosen: 1,024 steps of 16,384 tokens."""

DATA_SYMPTOMS = (Symptom.ODD_TOKENS, Symptom.TEXT_CHANGED, Symptom.REPEATED_BATCH)


class BatchMemory:
    """Keeps batches and examines them; on the first rank, so it knows that rank's sequences."""

    def __init__(
        self,
        config: LiveConfig,
        folder: Path,
        *,
        decode: Decode | None = None,
        shield: Shield | None = None,
        max_bytes: int = MAX_BYTES,
    ) -> None:
        """A memory for one run, whose incidents have their folders in `folder`.

        The token ids take at most `max_bytes`; text is written only with `decode`.
        """
        self._folder = folder
        self._saving: list[threading.Thread] = []
        self._shield = shield or Shield("batch memory", "reports name no tokens")
        self._max_steps = config.batch_memory_steps
        self._max_bytes = max_bytes
        self._decode = decode
        self._batches: deque[KeptBatch] = deque()
        self._num_bytes = 0
        self._counts: IntArray = np.zeros(0, dtype=np.int64)
        self._uncounted: list[TokenRows] = []
        self._num_uncounted = 0
        self._frozen: dict[int, KeptBatches] = {}
        self._reports: dict[int, BatchReport] = {}

    def add(self, tick: int, step: int, note: StepNote) -> None:
        if not self._max_steps or self._shield.is_down:
            return
        with self._shield.guarding("step"):
            self._add(tick, step, note)

    def freeze(self, incident: Incident) -> None:
        """Keep the batches around the onset of an incident; more of them with every change."""
        if self._max_steps and not self._shield.is_down:
            with self._shield.guarding("incident"):
                self._freeze(incident)

    def reports(self, incidents: Sequence[Incident]) -> tuple[BatchReport, ...]:
        """What was found in the batches of these incidents, at the end of the run."""
        for thread in self._saving:
            thread.join()
        with self._shield.guarding("reports"):
            for incident in incidents:
                if incident.number in self._frozen:
                    self._freeze(incident)  # more batches have come since its last change
            for number in list(self._frozen):
                self._examine(number)
        return tuple(self._reports.values())

    def _add(self, tick: int, step: int, note: StepNote) -> None:
        losses = [np.array(copy.read()[:-NUM_BINS]).reshape(-1, VALUES) for copy in note.row_losses]
        batch = KeptBatch(
            tick=tick,
            step=step,
            data_position=note.data_position,
            parts=note.token_rows,
            losses=tuple(losses),
        )
        self._batches.append(batch)
        self._num_bytes += batch.num_bytes
        while len(self._batches) > self._max_steps or self._num_bytes > self._max_bytes:
            self._forget(self._batches.popleft())

    def _freeze(self, incident: Incident) -> None:
        number, onset = incident.number, _onset(incident)
        if number in self._reports:
            return
        if not self._batches:
            return  # only `guard.steps(loader)` keeps them, on the host
        earlier = self._frozen.get(number)
        if earlier is None or earlier.onset_tick < onset:
            if self._batches[0].tick <= max(onset, incident.peak.tick):
                self._frozen[number] = self._freeze_first(onset, incident.peak.tick)
                self._save_soon(incident)
            if len(self._frozen) > MAX_FROZEN:
                self._examine(next(iter(self._frozen)))
            return
        last = earlier.around[-1].tick if earlier.around else onset - MARGIN - 1
        later = [batch for batch in self._batches if batch.tick > last]
        around = self._within_limits([*earlier.around, *later], STEPS_AROUND)
        self._frozen[number] = dataclasses.replace(
            earlier, peak_tick=incident.peak.tick, around=tuple(around)
        )

    def _save_soon(self, incident: Incident) -> None:
        """Write what is known already, by id, for the case that the run is killed.

        The post-mortem can be written again from the journal; the batches could not.
        """
        kept, folder = self._frozen[incident.number], self._folder / incident_folder_name(incident)

        def save() -> None:
            with self._shield.guarding("saving"):
                report = examine(kept)
                if report is not None:
                    write_batch(folder, report)

        thread = threading.Thread(target=save, name="trimtab-batches", daemon=True)
        self._saving = [one for one in self._saving if one.is_alive()]
        self._saving.append(thread)
        thread.start()

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

    def _examine(self, number: int) -> None:
        report = examine(self._frozen.pop(number))
        if report is not None and self._decode is not None:
            try:
                report = report.decoded(self._decode)
            except Exception:  # the user's code
                log.warning("trimtab: the tokenizer failed; tokens are shown by id", exc_info=True)
        if report is not None:
            self._reports[number] = report

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
