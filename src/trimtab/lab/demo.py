"""The demo: a small GPT on real text that goes wrong twice, without a guard and with one."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np
import torch
from torch.nn.functional import cross_entropy

import trimtab
from trimtab.core.block import Block
from trimtab.core.config import Config, Mode
from trimtab.journal import RunDirectory, read_journal
from trimtab.lab.corpus.data import DataConfig, Loader, TokenCorpus, WindowDataset
from trimtab.lab.corpus.tokens import CorpusConfig, prepare_corpus
from trimtab.lab.model.gpt import Gpt
from trimtab.lab.model.optimizer import OptimizerConfig, make_optimizer
from trimtab.lab.model.sizes import SIZES

SIZE = SIZES["0.15M"]
MODES = (Mode.OBSERVE, Mode.RECOVER)
SEED = 0
STEPS = 350
FLIP_STEP = 80
"""One bit of one weight flips, as in a faulty memory cell."""
NAN_STEP = 320
"""All targets of a batch are masked, so its mean loss is 0/0; its update makes every weight NaN.
Far enough from the flip for the guard to make experiments again, which find the operation."""
FLIPPED_BIT = 30
"""The highest bit of the exponent: it makes 1e36 of a weight of 0.01."""

LR, CLIP = 3e-3, 1.0
PLAN = {"optimizer": "adamw", "lr": LR, "clip_norm": CLIP, "warmup_steps": 0, "steps": STEPS}
"""What `trimtab check` can know of the runs before they start."""

GUARD = Config.from_dict({"live": {"telemetry_every": 10}, "recover": {"snapshot_every": 10}})
"""Fixed, not chosen by the time that they take: the demo shows the same on every machine."""

CORPUS_BYTES = 2**21
"""2 MB of the standard library: enough for a small model and tokenized in a few seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoRun:
    """One of the two runs, as its journal has it."""

    folder: Path
    block: Block

    @property
    def updates_lost(self) -> int:
        undos = [event for event in self.block.events if event.kind == "undo"]
        return sum(int(dict(event.facts)["updates_lost"]) for event in undos)


Show = Callable[[int, Sequence[float], Sequence[float]], None]
"""Called with the step, the losses of the run alone, and those of the run that recovers."""


def run_demo(folder: Path, show: Show) -> tuple[DemoRun, DemoRun]:
    """Train the same run with the same two faults twice, in turns: observed, and recovering."""
    torch.set_num_threads(1)  # sums over two threads differ from those over one in the last bit
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

    def batch_loss(batch: dict[str, torch.Tensor]) -> torch.Tensor:
        """Return the mean over the targets that are not masked."""
        targets, mask = batch["labels"], batch["loss_mask"]
        logits = model(batch["input_ids"], targets).logits
        losses = cross_entropy(logits.transpose(1, 2), targets, reduction="none")
        return (losses * mask).sum() / mask.sum()

    with trimtab.watch(
        model,
        optimizer,
        run_dir=run_dir,
        mode=mode,
        config=GUARD,
        batch_loss=batch_loss,
        facts={"seed": SEED},
    ) as guard:
        for number, loaded in enumerate(islice(Loader(data), STEPS)):
            mask = torch.full(loaded.targets.shape, float(number != NAN_STEP))
            batch = {"input_ids": loaded.tokens, "labels": loaded.targets, "loss_mask": mask}
            if number == FLIP_STEP:
                _flip_bit(model)
            loss = batch_loss(batch)
            guard.record(loss=loss, tokens=loaded.numel(), batch=batch)
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
