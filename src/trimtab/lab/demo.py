"""The demo: a small GPT on real text, with one bad batch and one NaN loss."""

import dataclasses
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import torch

import trimtab
from trimtab.lab.corpus.data import Batch, DataConfig, WindowDataset, make_loader
from trimtab.lab.corpus.tokens import CorpusConfig, prepare_corpus
from trimtab.lab.model.gpt import Gpt
from trimtab.lab.model.optimizer import OptimizerConfig, make_optimizer
from trimtab.lab.model.sizes import SIZES

STEPS = 480
BAD_BATCH_STEP = 300
"""A batch that repeats one token, like the repeated boilerplate of web crawls."""
NAN_STEP = 420
"""The loss is NaN once; its update writes NaN into every weight for the rest of the run."""

CORPUS_BYTES = 2**21
"""2 MB of the standard library: enough for a small model and tokenized in a few seconds."""

Advance = Callable[[int, int], None]


def _with_bad_batch(loader: Iterable[Batch]) -> Iterator[Batch]:
    """The batches of a loader, with one bad batch."""
    for batch in loader:
        if batch.position == BAD_BATCH_STEP:
            token = int(batch.tokens.max())
            batch = dataclasses.replace(
                batch,
                tokens=torch.full_like(batch.tokens, token),
                targets=torch.full_like(batch.targets, token),
            )
        yield batch


def run_demo(run_dir: Path, *, seed: int, cache_dir: Path | None, advance: Advance) -> None:
    """Train for half a minute with both faults; the result is a run directory."""
    size = SIZES["0.15M"]
    corpus = prepare_corpus(
        CorpusConfig(vocab_size=size.vocab_size, max_bytes=CORPUS_BYTES), cache_dir=cache_dir
    )
    data = WindowDataset(corpus, DataConfig(batch_size=8, length=64, seed=seed))
    model = Gpt(size, generator=torch.Generator().manual_seed(seed))
    optimizer = make_optimizer(model, OptimizerConfig(lr=3e-3))

    with trimtab.watch(model, optimizer, run_dir=run_dir, seed=seed) as guard:
        for step in guard.steps(_with_bad_batch(make_loader(data))):
            for batch in step:
                loss = model(batch.tokens, batch.targets).loss
                if step.number == NAN_STEP:
                    loss = loss * float("nan")
                guard.record(loss=loss, tokens=batch.numel())
                loss.backward()
            guard.clip_grad_norm_(1.0)
            optimizer.step()
            optimizer.zero_grad()
            advance(step.number + 1, STEPS)
            if step.number + 1 == STEPS:
                break
