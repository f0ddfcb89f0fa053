"""The same rows in several orders: does a run spike, and what does it learn?

Each run sees the same rows once: windows of the lab's corpus, of which some hold a burst of tokens
that occur fewer than 10 times in all of them. The bad rows are one shard. A loader that shuffles
within a buffer, or not at all, meets them together.
"""

import dataclasses
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray

import trimtab
from trimtab.core.causes import Cause
from trimtab.core.findings import Severity
from trimtab.corpus import Shuffle, find_rare_windows, spread_rare
from trimtab.journal import RunDirectory, read_journal
from trimtab.lab.corpus.data import Batch, DataConfig, WindowDataset
from trimtab.lab.model.optimizer import OptimizerConfig
from trimtab.lab.model.sizes import SIZES
from trimtab.lab.trainer.checkpoints import LabRun
from trimtab.lab.trainer.intervention import Intervention, RunParts
from trimtab.lab.trainer.train import train
from trimtab.lab.trainer.train_config import Dtype, TrainConfig

STEPS, BATCH, LENGTH = 240, 8, 64
BURST = 16
"""Rare tokens in a bad row: a quarter of it."""
BELOW = 10
SPIKING_LR, CALM_LR = 3e-3, 1e-3
"""Peak rates. At the first, a batch full of rare tokens makes a run spike, and every run has large
gradients after its warm-up, so that two orders of the same rows end far apart. Final losses are
compared at the second, at which no order spikes."""
SHARD_FROM = 120
"""The first step whose batches may be of the bad shard, if rows come in the order of storage."""


class Order(StrEnum):
    """How the rows are ordered."""

    STORED = "stored"
    """Shuffled, but the bad shard stays together."""
    STORED_SPREAD = "stored, spread_rare"
    SHUFFLED = "shuffled"
    SHUFFLED_SPREAD = "shuffled, spread_rare"


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a run did."""

    spikes: int
    """Incidents of trimtab's rules that have an alarm."""
    rare_spikes: int
    """Those whose first alarm is at a batch with a rare token."""
    peak: float
    """The largest loss above the median of the 50 steps before it, after the first 100 steps."""
    peak_norm: float
    """The largest gradient norm divided by the median."""
    eval_loss: float
    repeated: int
    """Occurrences of a rare token that is in the same batch already."""
    most: int
    """Rare tokens in one batch, at most."""


class _Stored:
    """A sampler: a fixed order."""

    def __init__(self, order: NDArray[np.int64]) -> None:
        self._order = order

    def __iter__(self) -> Iterator[int]:
        return iter(self._order.tolist())


@dataclass(kw_only=True)
class OrderedRows(Intervention):
    """Serves the rows of the experiment in one of the orders."""

    cause: ClassVar[Cause | None] = None
    title: ClassVar[str] = "rows in another order"
    strength_name: ClassVar[str] = ""
    is_fault: ClassVar[bool] = False
    from_start: ClassVar[bool] = True
    by_data: ClassVar[bool] = True

    order: Order

    def attach(self, parts: RunParts) -> LabRun:
        rows, is_bad = make_rows(parts, self.seed)
        # A window has one token more than it trains on: the last target.
        counts = np.bincount(rows.ravel(), minlength=parts.config.model.vocab_size)
        rare = find_rare_windows(rows.ravel(), np.flatnonzero(counts < BELOW), LENGTH + 1)
        if self.order in (Order.STORED, Order.STORED_SPREAD):
            sampler: Any = _Stored(stored_order(is_bad, self.seed))
        else:
            sampler = Shuffle(len(rows), seed=self.seed)
        batches = spread_rare(sampler, rare, batch_size=BATCH, seed=self.seed)
        if self.order in (Order.STORED, Order.SHUFFLED):
            plain = np.fromiter(sampler, dtype=np.int64)
            served = [plain[i : i + BATCH].tolist() for i in range(0, len(plain), BATCH)]
            self.truth["repeated"] = batches.plan.repeated_before
        else:
            served = list(batches)
            self.truth["repeated"] = batches.plan.repeated
        held = np.bincount(rare.rows, minlength=len(rows))
        self.truth["held"] = [int(held[batch].sum()) for batch in served]
        return dataclasses.replace(parts.run, loader=_Rows(rows, served))


class _Rows:
    """A loader over given batches, endless as the lab's own."""

    def __init__(self, rows: NDArray[np.int64], batches: list[list[int]]) -> None:
        self._rows = torch.from_numpy(rows)
        self._batches = batches

    def __iter__(self) -> Iterator[Batch]:
        for position, batch in enumerate(self._batches):
            rows = self._rows[batch]
            yield Batch(
                tokens=rows[:, :-1].contiguous(),
                targets=rows[:, 1:].contiguous(),
                position=position,
                source_shares={},
            )

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        pass


def make_rows(parts: RunParts, seed: int) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """The rows of the experiment, and which of them are of the bad shard.

    The rare tokens are those that the lab's text never uses, each in fewer than 10 places.
    """
    config = DataConfig(batch_size=BATCH, length=LENGTH, seed=seed)
    data = WindowDataset(parts.corpus, config)
    batches = [data[position] for position in range(STEPS)]
    rows = np.concatenate(
        [np.hstack([b.tokens.numpy(), b.targets.numpy()[:, -1:]]) for b in batches]
    )
    never = np.flatnonzero(parts.corpus.counts() == 0)
    random = np.random.default_rng((seed, 1))
    num_bad = len(never) * (BELOW - 1) // BURST
    bad = random.choice(len(rows), size=num_bad, replace=False)
    left = np.full(len(never), BELOW - 1)
    for row in bad:
        # Those with most places left, in random order: none is used up before the last row.
        chosen = np.lexsort((random.random(len(never)), -left))[:BURST]
        left[chosen] -= 1
        start = int(random.integers(1, LENGTH - BURST))
        rows[row, start : start + BURST] = random.permutation(never[chosen])
    is_bad = np.zeros(len(rows), dtype=np.bool_)
    is_bad[bad] = True
    return rows, is_bad


def stored_order(is_bad: NDArray[np.bool_], seed: int) -> NDArray[np.int64]:
    """All rows shuffled, with the bad ones one after the other somewhere in the second half."""
    random = np.random.default_rng((seed, 2))
    good = random.permutation(np.flatnonzero(~is_bad))
    bad = random.permutation(np.flatnonzero(is_bad))
    last = len(good) // BATCH - 50
    at = int(random.integers(SHARD_FROM, last)) * BATCH
    return np.concatenate([good[:at], bad, good[at:]])


def run_order(
    seed: int, order: Order, *, lr: float = SPIKING_LR, cache_dir: Path | None = None
) -> Outcome:
    """Train with one order and judge the run."""
    config = TrainConfig(
        model=SIZES["0.15M"],
        steps=STEPS,
        optimizer=OptimizerConfig(lr=lr),
        dtype=Dtype.FP32,
        batch_size=BATCH,
        length=LENGTH,
        seed=seed,
        checkpoint_steps=STEPS,
        eval_steps=STEPS,
        eval_batches=64,
    )
    change = OrderedRows(onset=0, severity=1.0, seed=seed, order=order)
    with tempfile.TemporaryDirectory() as folder:
        run_dir = Path(folder, "run")
        outcome = train(config, run_dir, intervention=change, cache_dir=cache_dir)
        report = trimtab.diagnose(run_dir)
        block = read_journal(RunDirectory(run_dir)).block
    loss, norm = (block.column(name).values for name in ("loss", "grad_norm"))
    alarms = [
        min((f.step for f in found.incident.findings if f.severity is Severity.ALARM), default=None)
        for found in report.incidents
    ]
    steps = [step for step in alarms if step is not None]
    held = change.truth["held"]
    peaks = [loss[step] - np.median(loss[step - 50 : step]) for step in range(100, len(loss))]
    return Outcome(
        spikes=len(steps),
        rare_spikes=sum(held[step] > 0 for step in steps),
        peak=float(max(peaks)),
        peak_norm=float(norm[100:].max() / np.median(norm[100:])),
        eval_loss=outcome.eval_loss,
        repeated=int(change.truth["repeated"]),
        most=max(held),
    )
