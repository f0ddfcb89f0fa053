"""A shift of 0.02 in one of two runs over the same batches: how soon it is seen.

Public runs that share their data order stand in for a run and its reference; each is judged against
the other. The shift is put in at random rows, where the window of 600 rows before it is common.
"""

import dataclasses
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from tests.kit.public_runs import RealRun

from benchmarks.results import table
from benchmarks.scoring import episodes
from trimtab.core.block import Block, Column
from trimtab.core.findings import Severity
from trimtab.core.signals import LOSS, REFERENCE_LOSS
from trimtab.detect.reference import Reference, lay_beside

PAIRS = {
    "tune": ("moddednanogpt_scale1b_c007", "moddednanogpt_scale1b_ad8d"),
    "held-out": ("rwkv6_moddednanogpt", "rwkv7_moddednanogpt"),
}
"""Both runs of a pair are of the same split."""

SHIFT, WITHIN = 0.02, 10
POINTS, SEED = 100, 20260101
BEFORE, AFTER = 600, 60
FIRST_ROW = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class PairResult:
    """One run against another."""

    split: str
    run: str
    reference: str
    num_false: int
    num_points: int
    delays: list[int | None]


def measure_pairs(runs: Sequence[RealRun], split: str) -> list[PairResult]:
    """The pair of a split, each run against the other."""
    blocks = {run.name: run.block for run in runs}
    one, other = PAIRS[split]
    return [_measure(split, *names, blocks) for names in ((one, other), (other, one))]


def pair_table(results: Sequence[PairResult]) -> str:
    """Every pair on a line."""
    rows = []
    for result in results:
        found = [delay for delay in result.delays if delay is not None]
        soon = sum(delay <= WITHIN for delay in found)
        rows.append(
            (
                result.split,
                result.run,
                result.reference,
                f"{result.num_false} in {result.num_points:,}",
                f"{soon} of {len(result.delays)}",
                f"{statistics.median(found):g} / {max(found)}" if found else "-",
            )
        )
    header = ("split", "run", "reference", "false episodes", f"within {WITHIN}", "median / worst")
    return table(header, rows)


def _measure(split: str, run: str, reference: str, blocks: dict[str, Block]) -> PairResult:
    beside = lay_beside(blocks[run], blocks[reference])
    common = np.flatnonzero(beside.column(REFERENCE_LOSS).present)
    draw = np.random.default_rng(SEED)
    rows = draw.integers(common[0] + FIRST_ROW, common[-1] - AFTER, POINTS)
    return PairResult(
        split=split,
        run=run,
        reference=reference,
        num_false=len(episodes(_alarm_rows(beside))),
        num_points=len(common),
        delays=[_delay(beside[row - BEFORE : row + AFTER]) for row in rows.tolist()],
    )


def _delay(window: Block) -> int | None:
    """Steps from a shift to its alarm; None if it is not seen."""
    loss = window.column(LOSS)
    shifted = loss.values + np.where(np.arange(len(window)) < BEFORE, 0.0, SHIFT)
    columns = {**window.columns, LOSS: Column(shifted, loss.present)}
    rows = _alarm_rows(dataclasses.replace(window, columns=columns))
    return next((row - BEFORE for row in rows if row >= BEFORE), None)


def _alarm_rows(block: Block) -> list[int]:
    alarms = (found for found in Reference().update_many(block) if found.severity is Severity.ALARM)
    return [block.row_of(found.tick) for found in alarms]
