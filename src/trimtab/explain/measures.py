"""Symptoms: an incident in numbers, before any explanation.

Which layer moved first: signals by layer, each against its own past and the other layers.

A fault in one layer shows in the gradients and outputs of all of them. So a value counts by how far
it has moved beyond the median of the layers at the same step, in units of how far it did so before.
"""

import math
import re
from dataclasses import dataclass

import numpy as np

from trimtab.core import signals
from trimtab.core.block import NO_POSITION, Block, FloatArray, IntArray
from trimtab.core.findings import Symptom
from trimtab.core.text import digits
from trimtab.explain.context import IncidentContext
from trimtab.explain.evidence.observation import deviation

EMA_RECORDS = 50
"""The loss before the onset is an exponential average over 50 records. Source: the post-mortem
template of the textbook."""

OUTLIER_DEVIATIONS = 8.0
"""Values this far above the median do not count: they belong to an incident before this one.
Chosen: far beyond what noise reaches in 50 records."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Symptoms:
    """The numbers of an incident; None is "not recorded"."""

    loss_before: float | None
    """Exponential average over the 50 records before the onset, without outliers."""
    loss_peak: float | None
    loss_after_50: float | None
    """50 records after the peak."""
    loss_after_500: float | None
    grad_norm_before: float | None
    grad_norm_peak: float | None
    lr: float | None
    dtype: str | None
    data_position: int | None
    tokens: float | None
    token_rarity: float | None
    unique_token_share: float | None
    """Of the batch at the onset, or of the one whose tokens were found odd: an onset may be dated
    back to a warning."""


def measure(context: IncidentContext) -> Symptoms:
    """Measure an incident."""
    odd = [f.tick for f in context.incident.findings if f.symptom == Symptom.ODD_TOKENS]
    row = context.block.row_of(odd[0]) if odd else context.onset_row
    row = min(row, len(context.block) - 1)
    position = int(context.block.data_position[row]) if context.has_onset else NO_POSITION
    return Symptoms(
        loss_before=_average(context.before(signals.LOSS, 4 * EMA_RECORDS)),
        loss_peak=context.incident.peak.loss,
        loss_after_50=context.loss_after(50),
        loss_after_500=context.loss_after(500),
        grad_norm_before=_average(context.before(signals.GRAD_NORM, 4 * EMA_RECORDS)),
        grad_norm_peak=context.worst(signals.GRAD_NORM),
        lr=context.at_onset(signals.LR),
        dtype=context.facts.dtype,
        data_position=None if position == NO_POSITION else position,
        tokens=context.at(row, signals.TOKENS),
        token_rarity=context.at(row, signals.TOKEN_RARITY),
        unique_token_share=context.at(row, signals.UNIQUE_TOKEN_SHARE),
    )


def _average(values: FloatArray) -> float | None:
    """Return the exponential average at the last of these values."""
    if not len(values):
        return None
    newest = values[-EMA_RECORDS:]
    limit = np.median(newest) + OUTLIER_DEVIATIONS * deviation(newest)
    kept = values[values <= limit]
    average = float(kept[0])
    # Of fewer than four times as many values the first would count too much.
    records = min(EMA_RECORDS, max(len(values) // 4, 1))
    # 2 / (n + 1) is the usual weight of the newest value in an average over n records.
    for value in kept[1:]:
        average += (float(value) - average) * 2 / (records + 1)
    return average if math.isfinite(average) else None


NEAR_RECORDS = 8
"""Records before the onset that are looked at too: the onset may be dated a little late."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchRepeats:
    """A batch that was served several times."""

    step: int
    data_position: int
    """Where it was served first, as far as the records go; negative if it is not known."""
    count: int
    """How often it was served, the first time included."""
    last_step: int
    last_data_position: int
    num_others: int
    """Other batches of the incident that were served before too."""


def find_repeated_batch(context: IncidentContext) -> BatchRepeats | None:
    """Find the batch that was served most often during an incident; None if none came twice.

    A run that goes over its data again repeats batches by plan: it is not reported.
    """
    block, column = context.block, context.block.column(signals.FINGERPRINT)
    if not context.has_onset:
        return None
    # Another attempt serves its batches again, as it should.
    is_same_attempt = block.attempt == block.attempt[context.onset_row]
    rows = np.flatnonzero(column.finite & is_same_attempt)
    first_row = max(context.onset_row - NEAR_RECORDS, 0)
    _, first, numbers = np.unique(column.values[rows], return_index=True, return_inverse=True)
    came_before = first[numbers] < np.arange(len(rows))
    during = (rows >= first_row) & (rows <= context.last_row)
    before = rows < first_row
    if not (came_before & during).any():
        return None
    # Batches came again before it, too: the run is in its second epoch.
    if before.any() and came_before[before][-NEAR_RECORDS:].all():
        return None
    repeated = numbers[came_before & during]
    which = int(np.bincount(repeated).argmax())
    served = rows[numbers == which]
    return BatchRepeats(
        step=int(block.step[served[0]]),
        data_position=int(block.data_position[served[0]]),
        count=len(served),
        last_step=int(block.step[served[-1]]),
        last_data_position=int(block.data_position[served[-1]]),
        num_others=len(np.unique(repeated)) - 1,
    )


_MAX_STRETCHES = 6
"""Listed one by one; in a run with more, the places hardly matter."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Discards:
    """How many steps were discarded, and where."""

    count: int
    stretches: tuple[tuple[int, int], ...]
    """First and last step of each unbroken series of them."""

    def where(self) -> str:
        """Return the steps as text: `117 to 120, 203 and 2 more places`."""
        shown = [
            f"{first:,}" if first == last else f"{first:,} to {last:,}"
            for first, last in self.stretches[:_MAX_STRETCHES]
        ]
        more = len(self.stretches) - len(shown)
        return ", ".join(shown) + (f" and {more:,} more places" if more else "")


def compute_discards(block: Block) -> Discards | None:
    """Sum up what was discarded in these records; None if the run was not protected."""
    column = block.column(signals.DISCARDED)
    if not column.recorded:
        return None
    rows = np.flatnonzero(column.present & (column.values > 0))
    # By rows, not steps: a resume at an earlier step may discard the same one twice.
    breaks = np.flatnonzero(np.diff(rows) > 1) + 1
    return Discards(
        count=len(rows),
        stretches=tuple(
            (int(block.step[part[0]]), int(block.step[part[-1]]))
            for part in np.split(rows, breaks)
            if len(part)
        ),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """What an incident took from its onset to its end; None is "not recorded"."""

    steps: int
    seconds: float | None
    tokens: float | None
    discarded: Discards | None
    """The steps that never reached the weights; None if the run was not protected."""


def compute_cost(context: IncidentContext) -> Cost:
    """Compute the cost of an incident, by the step time and throughput around it."""
    incident = context.incident
    steps = max((incident.end or incident.last).step - incident.onset.step, 0) + 1
    step_seconds = _typical(context, signals.STEP_SECONDS)
    tokens_per_second = _typical(context, signals.TOKENS_PER_SECOND)
    seconds = tokens = None
    if step_seconds is not None:
        seconds = steps * step_seconds
        if tokens_per_second is not None:
            tokens = seconds * tokens_per_second
    discarded = compute_discards(context.block[context.onset_row : context.last_row + 1])
    return Cost(steps=steps, seconds=seconds, tokens=tokens, discarded=discarded)


def _typical(context: IncidentContext, signal: str) -> float | None:
    """Return the median around the incident: a few stalled steps must not set the price."""
    column = context.block.column(signal)
    values = column.values[column.finite]
    return float(np.median(values)) if len(values) else None


CHANGE_BEFORE, CHANGE_AFTER, MIN_LOSSES = 32, 50, 8
"""Records before an act and from it on whose losses are compared, and the fewest on each side that
say anything. Chosen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LossChange:
    """The median loss before and after a record."""

    before: float
    after: float
    records: int
    """Finite losses after it."""
    not_finite: int


def loss_change(block: Block, tick: int) -> LossChange | None:
    """Return how the loss has moved since a record; None if there are too few losses."""
    row, loss = block.row_of(tick), block.column(signals.LOSS)
    before, after = loss[max(row - CHANGE_BEFORE, 0) : row], loss[row : row + CHANGE_AFTER]
    then, now = before.values[before.finite], after.values[after.finite]
    if min(len(then), len(now)) < MIN_LOSSES:
        return None
    return LossChange(
        before=float(np.median(then)),
        after=float(np.median(now)),
        records=len(now),
        not_finite=int(np.count_nonzero(after.present & ~after.finite)),
    )


FIRST_LOSSES = 3
"""Losses whose median is where a run began."""

FLAT_RECORDS, FLAT_SHARES = 400, (0.001, 0.005)
"""A loss is flat if its median over the last quarter of at least so many records is no more below
that of the quarter before than chance explains (two standard errors), within these shares. Chosen:
a healthy pretraining falls by per cents."""


def flat_loss(block: Block) -> LossChange | None:
    """Return the loss of the last half of a run if it hardly falls there; None if it falls."""
    column = block.column(signals.LOSS)
    losses = column.values[column.finite]
    quarter = len(losses) // 4
    # The level of a surrogate's or a policy's loss says nothing.
    is_surrogate = losses.min(initial=1.0) <= 0 or block.column(signals.REWARD).recorded
    if len(losses) < FLAT_RECORDS or is_surrogate:
        return None
    parts = np.split(losses[-2 * quarter :], 2)
    then, now = (float(np.median(part)) for part in parts)
    # The error of a median is 1.25 times that of a mean.
    error = 1.25 * float(np.sqrt(sum(part.var() for part in parts) / quarter))
    if then - now > then * min(max(2 * error / then, FLAT_SHARES[0]), FLAT_SHARES[1]):
        return None
    return LossChange(before=then, after=now, records=quarter, not_finite=0)


def has_never_fallen(block: Block) -> bool:
    """Return whether a flat loss was no higher in the first records than it is now."""
    flat, column = flat_loss(block), block.column(signals.LOSS)
    if flat is None:
        return False
    losses = column.values[column.finite]
    noise = deviation(losses[-flat.records :])
    return bool(abs(float(np.median(losses[:FIRST_LOSSES])) - flat.after) < 3 * noise)


JUMPED, JUMP_BEFORE, JUMP_STAYS = 1.4, 3, 4
"""Times the highest of so many losses just before that a loss must be to have jumped, and the
losses from there to the end of a short log that must be so. Chosen: no public log with as few
records that is healthy has such a jump."""


def lasting_jump(block: Block) -> str:
    """Return how the loss of a short log jumped and stayed: "the loss jumped at step 700 (5.6 ->
    9.9) and stayed"; "" if it did not, or does not measure progress."""
    column = block.column(signals.LOSS)
    losses, steps = column.values[column.finite], block.step[column.finite]
    has_direction = not any(block.column(name).recorded for name in signals.WITHOUT_DIRECTION)
    if not has_direction or not len(losses) or losses.min() <= 0:
        return ""
    for at in range(JUMP_BEFORE, len(losses) - JUMP_STAYS + 1):
        if losses[at:].min() >= JUMPED * losses[at - JUMP_BEFORE : at].max():
            before, now = digits(float(losses[at - 1])), digits(float(losses[at]))
            return f"the loss jumped at step {int(steps[at]):,} ({before} -> {now}) and stayed"
    return ""


FAMILIES = (
    signals.LAYER_PARAM_NORM,
    signals.LAYER_UPDATE_RATIO,
    f"{signals.GRAD_NORM_OF}layer.",
    f"{signals.MAX_ATTENTION_LOGIT}/",
    signals.ACTIVATION_RMS,
    signals.OUTPUT_RMS,
)
"""Weights and updates of a layer are its own and come first where two have moved as far."""

BEFORE, AFTER = 12, 3
"""Records with telemetry before the onset and after it: the usual values, and where to search."""

MIN_BEFORE = 4
"""Records before the search that are needed to know what is usual."""

EARLY = 2
"""Records before the onset in which a layer may have moved already: a loss reacts late."""

MIN_SIGMAS, MIN_LOG = 8.0, math.log(1.1)
"""How far a layer must have moved beyond the others: in its own deviations, and by a tenth. Chosen;
in a GPT of 6 layers, 20 faults of one layer were named and 10 healthy runs quiet (2026-11-18)."""

FLOOR = 0.01
"""The least deviation, of a logarithm: weights move by far less than that from record to record."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerMove:
    """A layer that has moved, with the signal in which it shows first."""

    layer: str
    signal: str
    step: int
    ratio: float
    """The value at the step, divided by its usual one."""
    sigmas: float


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LayerMap:
    """One family of signals around an incident: a row for each layer, a column for each record."""

    family: str
    names: tuple[str, ...]
    """Signals, in the order of the layers."""
    layers: tuple[str, ...]
    steps: tuple[int, ...]
    ratios: FloatArray
    """Values divided by the usual ones."""


def first_movers(block: Block, onset_row: int) -> tuple[tuple[LayerMove, ...], LayerMap | None]:
    """Return the layers that moved, first one first, and the signals of the first one's family."""
    moves: dict[str, tuple[tuple[float, ...], LayerMove, LayerMap]] = {}
    for rank, family in enumerate(FAMILIES):
        found = _values(block, onset_row, family)
        if found is None:
            continue
        names, rows, values, num_before = found
        with np.errstate(all="ignore"):  # values that are not finite are dealt with below
            logs = np.log(np.abs(values))
            usual = np.median(logs[:, :num_before], axis=1)
            moved = logs - usual[:, None]
            middle = np.nan_to_num(np.median(moved, axis=0), nan=0.0, posinf=0.0, neginf=0.0)
            beyond = moved - middle
            # Of a dozen, the largest is at 2 deviations.
            spread = np.abs(beyond[:, :num_before]).max(axis=1) / 2
            sigmas = np.abs(beyond) / np.maximum(spread, FLOOR)[:, None]
            ratios = np.exp(moved)
        # A value that is not finite has moved as far as can be.
        sigmas = np.where(np.isfinite(logs), sigmas, np.inf)
        far = (sigmas > MIN_SIGMAS) & ~(np.abs(beyond) <= MIN_LOG)
        chart = LayerMap(
            family=family,
            names=tuple(names),
            layers=tuple(_layer(name) for name in names),
            steps=tuple(int(step) for step in block.step[rows]),
            ratios=ratios,
        )
        for at, name in enumerate(names):
            columns = np.flatnonzero(far[at, num_before:]) + num_before
            if not len(columns):
                continue
            column = int(columns[0])
            move = LayerMove(
                layer=_layer(name),
                signal=name,
                step=int(block.step[rows[column]]),
                ratio=float(ratios[at, column]),
                sigmas=float(sigmas[at, column]),
            )
            key = (column - num_before, rank > 1, -move.sigmas)
            if move.layer not in moves or key < moves[move.layer][0]:
                moves[move.layer] = (key, move, chart)
    ordered = sorted(moves.values(), key=lambda entry: entry[0])
    return tuple(move for _, move, _ in ordered), ordered[0][2] if ordered else None


def _values(
    block: Block, onset_row: int, family: str
) -> tuple[list[str], IntArray, FloatArray, int] | None:
    """Return names, rows and values of a family, and how many of the rows are before the search."""
    names = [n for n, c in block.columns.items() if n.startswith(family) and c.recorded]
    names = sorted((n for n in names if _layer(n)), key=lambda n: (len(_layer(n)), n))
    if len(names) < 3:  # of two, it cannot be told which has moved
        return None
    present = np.all([block.column(name).present for name in names], axis=0)
    rows = np.flatnonzero(present)
    onset = int(np.searchsorted(rows, onset_row))
    rows = rows[max(onset - BEFORE, 0) : onset + AFTER]
    num_before = min(onset, BEFORE) - EARLY
    if num_before < MIN_BEFORE:
        return None
    values = np.array([block.column(name).values[rows] for name in names])
    return names, rows, values, num_before


def _layer(name: str) -> str:
    """Return the number of the layer in a signal's name; empty if there is none."""
    numbers = re.findall(r"(?:^|[./])(\d+)(?=$|\.)", name)
    return numbers[0] if numbers else ""
