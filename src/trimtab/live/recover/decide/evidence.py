"""What the records of a run say about an incident: the input of the ladder, on the first rank."""

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from trimtab.core import signals
from trimtab.core.block import Record
from trimtab.core.findings import Finding, Severity, Symptom
from trimtab.core.incidents import Incident
from trimtab.core.robust import median, sigma_around
from trimtab.decide.symptoms import PASSIVE, traits_of

DATED_DETECTORS = frozenset({"state-jump", "non-finite", "counters"})
"""Their findings are at the step of the fault."""

PAST_STEPS = 50
"""A spike of the gradient that came longer before than this does not date what came later, also
where it has opened the incident. Source: textbook, "back within 50 steps"."""

BATCH_SYMPTOMS = frozenset({Symptom.TEXT_CHANGED, Symptom.ODD_TOKENS})
"""The batches are unlike those before; whether that does harm, only a probe shows."""

ODD_SIGMAS = 4.0
"""A loss this many deviations above the median is that of an odd batch. Source: hard batches that
were taken for a fault in healthy runs of the lab."""

USUAL_RECORDS, MIN_USUAL = 64, 16
"""Records before the onset that say what is usual, and how many of them are needed."""

SETTLING_RECORDS = 2
"""Records after an odd batch that show whether it was the batch."""

GROWTH_STEPS, GREW_TIMES = 32, 4.0
"""Steps before the onset over which a block may have grown, and how much is out of the ordinary.
Source: activations that overflow fp16 grew for 30 steps and more before it showed."""

MULTIPLE, ALIKE, MIN_RATIOS = 1.5, 0.15, 4
"""Loss of known batches as a multiple of that in training, and how far apart these may lie to be
one multiple. Chosen: 2 micro-batches that are summed make 2, and batches are learnt differently
well. Only words depend on it."""

SLOPE_RECORDS = 128
RECENT_STEPS = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchOddity:
    """Whether the batch at the onset explains what was found there."""

    is_odd: bool
    is_known: bool
    """Whether enough records have followed to say so."""


def alarms(incident: Incident) -> list[Finding]:
    """The findings that make it an incident, without passive ones that are long past."""
    found = [finding for finding in incident.findings if finding.severity is Severity.ALARM]
    found = sorted(found or incident.findings, key=lambda finding: finding.step)
    active = [one.step for one in found if traits_of(one.symptom).family not in PASSIVE]
    first = active[0] - PAST_STEPS if active else 0
    return [finding for finding in found if finding.step >= first]


def onset_of(incident: Incident) -> int:
    """Where the present trouble of an incident began."""
    onset, first = incident.onset.step, alarms(incident)[0].step
    return first if first - onset > PAST_STEPS else onset


def has_odd_tokens(incident: Incident) -> bool:
    """Whether the tokens of the batch at the onset were unlike those before."""
    onset = onset_of(incident)
    return any(
        finding.symptom == Symptom.ODD_TOKENS and abs(finding.step - onset) <= 1
        for finding in incident.findings
    )


def text_changed(incidents: Sequence[Incident], since: int) -> bool:
    """Whether the tokens have changed about since a step."""
    return any(
        finding.symptom in BATCH_SYMPTOMS and finding.step >= since - PAST_STEPS
        for incident in incidents
        for finding in incident.findings
    )


def signals_of(findings: Sequence[Finding]) -> tuple[str, ...]:
    """The signals that show them; the parts of one signal are one."""
    return tuple(dict.fromkeys(finding.signal.partition("/")[0] for finding in findings))


def is_bad(record: Record) -> bool:
    """Whether a step was discarded, or its loss was not finite."""
    loss = record.signals.get(signals.LOSS)
    is_discarded = record.signals.get(signals.DISCARDED, 0.0) > 0
    return is_discarded or (loss is not None and not math.isfinite(loss))


def count_bad(records: Sequence[Record]) -> tuple[int, int]:
    """Bad steps in a row up to now, and among the last 20."""
    recent = [is_bad(record) for record in records[-RECENT_STEPS:]]
    in_a_row = next((n for n, bad in enumerate(reversed(recent)) if not bad), len(recent))
    return in_a_row, sum(recent)


def usual_loss(records: Sequence[Record], onset: int) -> tuple[float, float] | None:
    """Median and deviation of the loss before the onset; None if too little is known."""
    losses = _losses([r for r in records if r.step < onset][-USUAL_RECORDS:])
    if len(losses) < MIN_USUAL:
        return None
    middle = median(losses)
    return middle, sigma_around(middle, losses)


def oddity(records: Sequence[Record], onset: int) -> BatchOddity:
    """Whether the loss of the batch at the onset alone was far above usual."""
    usual = usual_loss(records, onset)
    after = [record for record in records if record.step >= onset]
    first = after[0].signals.get(signals.LOSS) if after else None
    if usual is None or first is None:
        return BatchOddity(is_odd=False, is_known=True)
    limit = usual[0] + ODD_SIGMAS * usual[1]
    if first <= limit or not math.isfinite(first):
        return BatchOddity(is_odd=False, is_known=True)
    following = _losses(after[1 : 1 + SETTLING_RECORDS])
    if any(loss > limit for loss in following):
        return BatchOddity(is_odd=False, is_known=True)
    return BatchOddity(is_odd=True, is_known=len(following) == SETTLING_RECORDS)


def loss_excess(records: Sequence[Record], onset: int) -> tuple[float, float] | None:
    """Mean loss of the last records minus the usual one, and its deviation.

    A step that was discarded has not reached the weights: its loss says nothing about them.
    """
    usual = usual_loss(records, onset)
    since = [
        r.signals[signals.LOSS]
        for r in records
        if r.step > onset and signals.LOSS in r.signals and r.signals.get(signals.DISCARDED) != 1.0
    ]
    if usual is None or not since:
        return None
    last = since[-8:]
    return statistics.fmean(last) - usual[0], usual[1] / math.sqrt(len(last))


def slope(records: Sequence[Record], onset: int) -> float | None:
    """How much the loss fell per step before the onset; None if too little is known."""
    losses = _losses([r for r in records if r.step < onset][-SLOPE_RECORDS:])
    if len(losses) < 2 * MIN_USUAL:
        return None
    half = len(losses) // 2
    earlier, later = median(losses[:half]), median(losses[-half:])
    return (earlier - later) / (len(losses) - half)


def probe_steps(
    records: Sequence[Record], before: int, count: int, *, not_before: int = 0
) -> list[Record]:
    """The last records before a step that were trained on and can be compared."""
    good = [
        record
        for record in records
        if not_before <= record.step < before
        and not is_bad(record)
        and record.data_position >= 0
        and signals.LOSS in record.signals
    ]
    return good[-count:]


def positions_since(records: Sequence[Record], step: int, next_position: int) -> tuple[int, ...]:
    """The data positions from a step up to the present one."""
    starts = [r.data_position for r in records if r.step >= step and r.data_position >= 0]
    return tuple(range(min(starts), next_position)) if starts else ()


def odd_gradients(recent: Sequence[Record], records: Sequence[Record]) -> list[Record]:
    """The recent records whose gradient was far above usual, or which were discarded."""
    limit = _limit(records, signals.GRAD_NORM)
    return [
        record
        for record in recent
        if is_bad(record) or not record.signals.get(signals.GRAD_NORM, 0.0) <= limit
    ]


def odd_ranks(recent: Sequence[Record], records: Sequence[Record]) -> list[int]:
    """The rank that each odd step names: its loss was far above that of all ranks."""
    limit = _limit(records, signals.LOSS)
    return [
        int(record.signals[signals.MAX_LOSS_RANK])
        for record in recent
        if signals.MAX_LOSS_RANK in record.signals
        and not record.signals.get(signals.MAX_RANK_LOSS, 0.0) <= limit
    ]


def _limit(records: Sequence[Record], name: str) -> float:
    """What is odd of a signal: far above its median; inf if too little is known."""
    values = [record.signals[name] for record in records if name in record.signals]
    values = [value for value in values if math.isfinite(value)]
    if len(values) < MIN_USUAL:
        return math.inf
    middle = median(values)
    return middle + ODD_SIGMAS * sigma_around(middle, values)


def precision_note(records: Sequence[Record], onset: int) -> str:
    """Which block's output left its range, and what became of the loss scale; "" if neither."""
    if not records:
        return ""
    first, last = records[0].signals, _latest(records)
    usual = _latest([r for r in records if r.step < onset - GROWTH_STEPS]) or first
    ratios = {
        name.removeprefix(signals.ACTIVATION_RMS): last[name] / usual[name]
        for name in last
        if name.startswith(signals.ACTIVATION_RMS) and usual.get(name, 0.0) > 0
    }
    words = []
    block = max(ratios, key=lambda name: _rank(ratios[name]), default="")
    if block and not ratios[block] <= GREW_TIMES:
        is_finite = math.isfinite(ratios[block])
        grew = f"grew {ratios[block]:.0f} times" if is_finite else "not finite"
        words.append(f"output of {block} {grew}")
    before, now = first.get(signals.LOSS_SCALE), last.get(signals.LOSS_SCALE)
    if before is not None and now is not None and now < before:
        words.append(f"loss scale {before:.0f} -> {now:g}")
    return "; ".join(words)


def multiple_note(trained: Sequence[float], apart: Sequence[float]) -> str:
    """Whether known batches all have the same multiple of their loss in training; "" if not."""
    ratios = sorted((t + a) / t for t, a in zip(trained, apart, strict=False) if t > 0)
    if len(ratios) < MIN_RATIOS or not all(map(math.isfinite, ratios)):
        return ""
    middle = median(ratios)
    if middle < MULTIPLE or ratios[-1] - ratios[0] > ALIKE * middle:
        return ""
    return f"known batches all have {middle:.1f} times their loss: it may be computed differently"


def _latest(records: Sequence[Record]) -> dict[str, float]:
    """The last value of every signal."""
    return {name: value for record in records for name, value in record.signals.items()}


def _rank(value: float) -> float:
    return value if math.isfinite(value) else math.inf


def sources(
    records: Sequence[Record], onset: int, source_at: Callable[[int], str | None]
) -> tuple[list[str | None], list[str | None]]:
    """The data source of each batch before the onset and since, as far as it is known."""
    known = [record for record in records if record.data_position >= 0]
    before = [source_at(r.data_position) for r in known if r.step < onset]
    since = [source_at(r.data_position) for r in known if r.step >= onset]
    return before[-USUAL_RECORDS:], since


def _losses(records: Sequence[Record]) -> list[float]:
    found = [record.signals[signals.LOSS] for record in records if signals.LOSS in record.signals]
    return [loss for loss in found if math.isfinite(loss)]
