"""The demo: a small GPT on real text that goes wrong twice, without a guard and with one."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np
import torch

import trimtab
from trimtab.core.block import Block
from trimtab.core.config import Mode
from trimtab.core.signals import DISCARDED
from trimtab.journal import RunDirectory, read_journal
from trimtab.lab.corpus.data import Batch, DataConfig, TokenCorpus, WindowDataset, make_loader
from trimtab.lab.corpus.tokens import CorpusConfig, prepare_corpus
from trimtab.lab.model.gpt import Gpt
from trimtab.lab.model.optimizer import OptimizerConfig, make_optimizer
from trimtab.lab.model.sizes import SIZES
from trimtab.lab.trainer.train import EVERY_TENTH

SIZE = SIZES["0.15M"]
MODES = (Mode.OBSERVE, Mode.RECOVER)
SEED = 0
STEPS = 300
FLIP_STEP = 180
"""One bit of one weight flips, as in a faulty memory cell."""
NAN_STEP = 240
"""The loss is NaN once; its update writes NaN into every weight for the rest of the run."""
FLIPPED_BIT = 30
"""The highest bit of the exponent: it makes 1e36 of a weight of 0.01."""

LR, CLIP = 3e-3, 1.0
PLAN = {"optimizer": "adamw", "lr": LR, "clip_norm": CLIP, "warmup_steps": 0, "steps": STEPS}
"""What `trimtab check` can know of the runs before they start."""

CORPUS_BYTES = 2**21
"""2 MB of the standard library: enough for a small model and tokenized in a few seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoRun:
    """One of the two runs, as its journal has it."""

    folder: Path
    block: Block

    @property
    def num_discarded(self) -> int:
        column = self.block.column(DISCARDED)
        return int((column.values[column.present] > 0).sum())

    @property
    def updates_lost(self) -> int:
        undos = [event for event in self.block.events if event.kind == "undo"]
        return sum(int(dict(event.facts)["updates_lost"]) for event in undos)


Show = Callable[[int, Sequence[float], Sequence[float]], None]
"""Called with the step, the losses of the run alone, and those of the run that recovers."""


def run_demo(folder: Path, show: Show) -> tuple[DemoRun, DemoRun]:
    """Train the same run with the same two faults twice, in turns: observed, and recovering."""
    corpus = prepare_corpus(CorpusConfig(vocab_size=SIZE.vocab_size, max_bytes=CORPUS_BYTES))
    folders = [folder / mode.value for mode in MODES]
    runs = [_train(corpus, path, mode) for path, mode in zip(folders, MODES, strict=True)]
    curves: tuple[list[float], list[float]] = ([], [])
    for step, losses in enumerate(zip(*runs, strict=True)):
        for curve, loss in zip(curves, losses, strict=True):
            curve.append(loss)
        show(step, *curves)
    alone, recovered = (
        DemoRun(folder=path, block=read_journal(RunDirectory(path)).block) for path in folders
    )
    return alone, recovered


def _train(corpus: TokenCorpus, run_dir: Path, mode: Mode) -> Iterator[float]:
    """Train one of the runs, and yield the loss of each step."""
    data = WindowDataset(corpus, DataConfig(batch_size=8, length=64, seed=SEED))
    model = Gpt(SIZE, generator=torch.Generator().manual_seed(SEED))
    optimizer = make_optimizer(model, OptimizerConfig(lr=LR))

    def batch_loss(batch: Batch) -> torch.Tensor:
        loss: torch.Tensor = model(batch.tokens, batch.targets).loss
        return loss

    with trimtab.watch(
        model,
        optimizer,
        run_dir=run_dir,
        mode=mode,
        config=EVERY_TENTH,
        batch_loss=batch_loss,
        facts={"seed": SEED},
    ) as guard:
        for number, batch in enumerate(islice(make_loader(data), STEPS)):
            if number == FLIP_STEP:
                _flip_bit(model)
            loss = batch_loss(batch)
            if number == NAN_STEP:
                loss = loss * float("nan")
            guard.record(loss=loss, tokens=batch.numel(), batch=batch)
            loss.backward()
            guard.clip_grad_norm_(CLIP)
            optimizer.step()
            optimizer.zero_grad()
            yield float(loss.detach())


def _flip_bit(model: torch.nn.Module) -> None:
    """Flip a bit of the first weight of the last matrix, past torch, as hardware does."""
    matrix = [parameter for parameter in model.parameters() if parameter.ndim == 2][-1]
    bits = matrix.detach().numpy().reshape(-1).view(np.uint32)
    bits[0] ^= np.uint32(1 << FLIPPED_BIT)
