"""Margins: which of seven safeguards of a small GPT can be left out, alone and in pairs.

    a cell = what is left out x learning rate x seed  -> held-out loss after `STEPS` steps

29 sets (none, each one, each pair) at `RATES`; the first seed of all cells comes before the second.
A result is one line of a file, so a grid that was interrupted continues where it stopped.
"""

import dataclasses
import json
import math
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations, islice
from pathlib import Path

import numpy as np
import torch

from trimtab.lab.corpus.data import CorpusSplit, TokenCorpus
from trimtab.lab.corpus.tokens import CorpusConfig, Progress, prepare_corpus
from trimtab.lab.model.optimizer import OptimizerConfig
from trimtab.lab.model.sizes import ModelConfig
from trimtab.lab.trainer.engines import LabRanks
from trimtab.lab.trainer.train import Evaluator, build_run
from trimtab.lab.trainer.train_config import Dtype, TrainConfig

SAFEGUARDS = {
    "clipping": "no clipping in place of 1.0",
    "warm-up": "none in place of a tenth of the run",
    "beta2": "0.999 in place of 0.95",
    "pre-norm": "norms after the residual sums",
    "decay": "0 in place of 0.1",
    "bf16": "fp16 without a loss scale",
    "QK-norm": "none",
}
"""What can be left out, and what stands in its place."""

RATES = (3e-3, 3e-2, 3e-1)
"""Peak learning rates. Chosen: the best one, and ten and a hundred times as much."""
STEPS = 200
"""Chosen: a run at the best rate is then far below the loss of token frequencies."""
NEAR_NATS = 0.1
"""A run failed if it ends no more than this below the loss of token frequencies, which needs no
layer at all. Chosen: more than two evaluations of one model on other windows differ by."""
_CORPUS = CorpusConfig(vocab_size=512, max_bytes=2**21)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One run of the grid."""

    left_out: tuple[str, ...]
    lr: float
    seed: int

    def is_of(self, left_out: tuple[str, ...], lr: float) -> bool:
        """Whether it is a seed of this set at this rate."""
        return (self.left_out, self.lr) == (left_out, lr)

    def config(self) -> TrainConfig:
        """Return the settings of the run."""
        has = SAFEGUARDS.keys() - set(self.left_out)
        model = ModelConfig(
            vocab_size=_CORPUS.vocab_size,
            width=64,
            layers=4,
            heads=4,
            qk_norm="QK-norm" in has,
            post_norm="pre-norm" not in has,
        )
        optimizer = OptimizerConfig(
            lr=self.lr,
            beta2=0.95 if "beta2" in has else 0.999,
            weight_decay=0.1 if "decay" in has else 0.0,
        )
        return TrainConfig(
            model=model,
            steps=STEPS,
            optimizer=optimizer,
            dtype=Dtype.BF16 if "bf16" in has else Dtype.FP16,
            length=32,
            clip=1.0 if "clipping" in has else None,
            warmup_steps=None if "warm-up" in has else 0,
            seed=self.seed,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Margin:
    """What the runs of one set at one learning rate came to."""

    left_out: tuple[str, ...]
    lr: float
    losses: tuple[float, ...]
    """Held-out loss of each seed; infinite if the run was not finite any more."""
    num_failed: int
    """Seeds that ended not finite, or with the loss of token frequencies."""

    @property
    def text(self) -> str:
        """The margin in a few characters: "1 of 3, 4.31"."""
        finite = [loss for loss in self.losses if math.isfinite(loss)]
        mean = f", {sum(finite) / len(finite):.2f}" if finite else ""
        return f"{self.num_failed} of {len(self.losses)}{mean}"


def left_out_sets() -> list[tuple[str, ...]]:
    """List nothing, each safeguard, and each pair."""
    return [pair for count in range(3) for pair in combinations(SAFEGUARDS, count)]


def grid(seeds: int) -> list[Cell]:
    """List the cells in the order in which they are trained."""
    return [
        Cell(left_out=left_out, lr=lr, seed=seed)
        for seed in range(seeds)
        for lr in RATES
        for left_out in left_out_sets()
    ]


def grid_corpus(cache_dir: Path | None = None) -> TokenCorpus:
    """Return the text of all cells."""
    return prepare_corpus(_CORPUS, cache_dir=cache_dir)


def train_grid(
    path: Path, corpus: TokenCorpus, seeds: int, seconds: float, on_cell: Progress
) -> None:
    """Train the cells that the file lacks, one after the other, until the time is over."""
    until = time.monotonic() + seconds
    done, cells = read_losses(path), grid(seeds)
    missing = [cell for cell in cells if cell not in done]
    torch.set_num_threads(1)  # sums over two threads differ from those over one in the last bit
    path.parent.mkdir(parents=True, exist_ok=True)
    for count, cell in enumerate(missing, start=len(cells) - len(missing)):
        if time.monotonic() > until:
            return
        on_cell(count, len(cells))
        loss = train_cell(cell, corpus)
        line = dataclasses.asdict(cell) | {"steps": STEPS, "loss": str(loss)}
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")


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
    return dict(_read(path)) if path.exists() else {}


def _read(path: Path) -> Iterator[tuple[Cell, float]]:
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            found = json.loads(line)
            cell = Cell(
                left_out=tuple(found["left_out"]), lr=float(found["lr"]), seed=int(found["seed"])
            )
            if found["steps"] == STEPS:
                yield cell, float(found["loss"])
        except (ValueError, KeyError, TypeError):
            continue


def margins(losses: dict[Cell, float], corpus: TokenCorpus) -> list[Margin]:
    """Add up the seeds of each set and rate."""
    limit = frequency_loss(corpus) - NEAR_NATS
    found = []
    for lr in RATES:
        for left_out in left_out_sets():
            mine = [loss for cell, loss in losses.items() if cell.is_of(left_out, lr)]
            failed = sum(not loss < limit for loss in mine)
            found.append(Margin(left_out=left_out, lr=lr, losses=tuple(mine), num_failed=failed))
    return [one for one in found if one.losses]


def frequency_loss(corpus: TokenCorpus) -> float:
    """Return the held-out loss of a model that knows how frequent each token is, and no more."""
    held_out = np.zeros(corpus.vocab_size)
    for tokens in corpus.tokens(CorpusSplit.HELD_OUT).values():
        held_out += np.bincount(tokens, minlength=corpus.vocab_size)
    trained = corpus.counts() + 1
    return float(-(held_out * np.log(trained / trained.sum())).sum() / held_out.sum())
