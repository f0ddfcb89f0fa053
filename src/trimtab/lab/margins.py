"""Margins: which of seven safeguards of a small GPT can be left out, alone and in pairs.

    a cell = what is left out x learning rate x seed  -> held-out loss after `STEPS` steps

29 sets (none, each one, each pair) at `RATES`; the first seed of all cells comes before the second.
A result is one line of a file, so a grid that was interrupted continues where it stopped.
"""

import json
import math
import time
from dataclasses import asdict, dataclass, replace
from itertools import combinations, islice, product
from pathlib import Path

import numpy as np
import torch

from trimtab.lab.corpus.data import CorpusSplit, TokenCorpus
from trimtab.lab.corpus.tokens import CorpusConfig, Progress
from trimtab.lab.model.optimizer import OptimizerConfig
from trimtab.lab.model.sizes import ModelConfig
from trimtab.lab.trainer.engines import LabRanks
from trimtab.lab.trainer.train import Evaluator, build_run
from trimtab.lab.trainer.train_config import Dtype, TrainConfig

SAFEGUARDS = ("clipping", "warm-up", "beta2", "pre-norm", "decay", "bf16", "QK-norm")
"""What can be left out; what stands in its place is in `Cell.config`."""
LEFT_OUT = [one for count in range(3) for one in combinations(SAFEGUARDS, count)]
"""Nothing, each safeguard, and each pair."""
RATES = (3e-3, 3e-2, 3e-1)
"""Peak learning rates. Chosen: the best one, and ten and a hundred times as much."""
STEPS = 200
"""Chosen: a run at the best rate is then far below the loss of token frequencies."""
NEAR_NATS = 0.1
"""A run failed if it ends no more than this below the loss of token frequencies, which needs no
layer at all. Chosen: more than two evaluations of one model on other windows differ by."""
CORPUS = CorpusConfig(vocab_size=512, max_bytes=2**21)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One run of the grid."""

    left_out: tuple[str, ...]
    lr: float
    seed: int

    def config(self) -> TrainConfig:
        """Return the settings of the run."""
        clipping, warm_up, beta2, pre_norm, decay, bf16, qk_norm = (
            name not in self.left_out for name in SAFEGUARDS
        )
        model = ModelConfig(vocab_size=CORPUS.vocab_size, width=64, layers=4, heads=4)
        return TrainConfig(
            model=replace(model, qk_norm=qk_norm, post_norm=not pre_norm),
            steps=STEPS,
            optimizer=OptimizerConfig(
                lr=self.lr, beta2=0.95 if beta2 else 0.999, weight_decay=0.1 if decay else 0.0
            ),
            dtype=Dtype.BF16 if bf16 else Dtype.FP16,  # and no loss scale
            length=32,
            clip=1.0 if clipping else None,
            warmup_steps=None if warm_up else 0,
            seed=self.seed,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Margin:
    """What the runs of one set at one learning rate came to."""

    losses: tuple[float, ...]
    """Held-out loss of each seed; infinite if the run was not finite any more."""
    num_failed: int
    """Seeds that ended not finite, or with the loss of token frequencies."""

    @property
    def mean(self) -> str:
        """The mean of the finite losses as text, "NaN" without one."""
        finite = [loss for loss in self.losses if math.isfinite(loss)]
        return f"{sum(finite) / len(finite):.2f}" if finite else "NaN"

    def __str__(self) -> str:
        """Return "1 of 3, 4.31"."""
        return f"{self.num_failed} of {len(self.losses)}, {self.mean}"


def train_grid(
    path: Path, corpus: TokenCorpus, seeds: int, seconds: float, on_cell: Progress
) -> None:
    """Train the cells that the file lacks, one after the other, until the time is over."""
    until, done = time.monotonic() + seconds, read_losses(path)
    cells = [
        Cell(left_out=left_out, lr=lr, seed=seed)
        for seed, lr, left_out in product(range(seeds), RATES, LEFT_OUT)
    ]
    torch.set_num_threads(1)  # sums over two threads differ from those over one in the last bit
    path.parent.mkdir(parents=True, exist_ok=True)
    for count, cell in enumerate(cells):
        if cell in done:
            continue
        if time.monotonic() > until:
            return
        on_cell(count, len(cells))
        loss = train_cell(cell, corpus)
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(asdict(cell) | {"steps": STEPS, "loss": str(loss)}) + "\n")


def train_cell(cell: Cell, corpus: TokenCorpus) -> float:
    """Train a cell; return its held-out loss, infinite if a loss was not finite."""
    config, ranks = cell.config(), LabRanks(rank=0, size=1, device=torch.device("cpu"))
    run, forward = build_run(config, corpus, ranks)
    for batch in islice(run.loader, config.steps):
        with config.dtype.autocast(ranks.device):
            loss = forward(batch.tokens, batch.targets).loss
        if not loss.isfinite():
            return math.inf  # without a guard its update makes every weight NaN
        loss.backward()
        if config.clip is not None:
            torch.nn.utils.clip_grad_norm_(run.model.parameters(), config.clip)
        run.optimizer.step()
        run.scheduler.step()
        run.optimizer.zero_grad()
    held_out = Evaluator(corpus, config, ranks).evaluate(forward).loss
    return held_out if math.isfinite(held_out) else math.inf


def read_losses(path: Path) -> dict[Cell, float]:
    """Read the cells that are done; lines of other settings and a torn last line do not count."""
    found = {}
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
        try:
            saved = json.loads(line)
            left_out, lr, seed = tuple(saved["left_out"]), float(saved["lr"]), int(saved["seed"])
            if saved["steps"] == STEPS:
                found[Cell(left_out=left_out, lr=lr, seed=seed)] = float(saved["loss"])
        except (ValueError, KeyError, TypeError):
            continue
    return found


def margins(
    losses: dict[Cell, float], corpus: TokenCorpus
) -> dict[tuple[tuple[str, ...], float], Margin]:
    """Add up the seeds of each set and rate that was trained."""
    limit = frequency_loss(corpus) - NEAR_NATS
    found = {}
    for left_out, lr in product(LEFT_OUT, RATES):
        mine = [loss for cell, loss in losses.items() if (cell.left_out, cell.lr) == (left_out, lr)]
        if mine:
            failed = sum(not loss < limit for loss in mine)
            found[left_out, lr] = Margin(losses=tuple(mine), num_failed=failed)
    return found


def frequency_loss(corpus: TokenCorpus) -> float:
    """Return the held-out loss of a model that knows how frequent each token is, and no more."""
    held_out = np.zeros(corpus.vocab_size)
    for tokens in corpus.tokens(CorpusSplit.HELD_OUT).values():
        held_out += np.bincount(tokens, minlength=corpus.vocab_size)
    trained = corpus.counts() + 1
    return float(-(held_out * np.log(trained / trained.sum())).sum() / held_out.sum())
