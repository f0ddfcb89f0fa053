"""Which layer moved first: signals by layer, each against its own past and the other layers.

A fault in one layer shows in the gradients and outputs of all of them. So a value counts by how far
it has moved beyond the median of the layers at the same step, in units of how far it did so before.
"""

import math
import re
from dataclasses import dataclass

import numpy as np

from trimtab.core import signals
from trimtab.core.block import Block, FloatArray, IntArray

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
"""How far a layer must have moved beyond the others: in its own deviations, and by a tenth. Chosen,
and checked by `scripts/bench planted_layers`."""

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
