"""The lab in figures: how fast each size trains on one core, and what the corpus is made of."""

import itertools
import statistics
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import torch
from torch import Tensor

from benchmarks.rare_tokens import rare_tail
from benchmarks.results import publish, table
from trimtab.lab.corpus.data import TokenCorpus
from trimtab.lab.corpus.tokens import CorpusConfig, prepare_corpus
from trimtab.lab.model.sizes import SIZES
from trimtab.lab.trainer.train import train
from trimtab.lab.trainer.train_config import Dtype, TrainConfig

STEPS = {"0.15M": 60, "1M": 30, "3M": 20, "10M": 12, "x1": 6}
"""Enough for a median, and few enough to finish in minutes."""

UNCOUNTED = 2
"""The first steps allocate memory and create the optimizer's state."""


def step_seconds(size: str, dtype: Dtype) -> float:
    """The median CPU time of a watched step of the trainer."""
    config = TrainConfig(model=SIZES[size], steps=STEPS[size], dtype=dtype, eval_batches=1)
    clock: list[float] = []

    def on_step(done: int, loss: Tensor) -> None:
        clock.append(time.process_time())

    with tempfile.TemporaryDirectory() as folder:
        train(config, Path(folder), on_step=on_step)
    # Without the last step, which writes a checkpoint.
    steps = [end - begin for begin, end in itertools.pairwise(clock[UNCOUNTED - 1 : -1])]
    return statistics.median(steps)


def speed_rows(sizes: list[str]) -> list[list[object]]:
    """One row per size."""
    rows: list[list[object]] = []
    for size in sizes:
        row: list[object] = [size, f"{SIZES[size].parameters:,}", STEPS[size]]
        for dtype in Dtype:
            seconds = step_seconds(size, dtype)
            row += [f"{1 / seconds:.2f}", f"{1024 / seconds:,.0f}"]
        rows.append(row)
    return rows


def tokens_by_source(corpus: TokenCorpus) -> Counter[tuple[str, str]]:
    """Tokens of each source and split."""
    tokens: Counter[tuple[str, str]] = Counter()
    for entry in corpus.manifest["files"].values():
        if "tokens" in entry:
            tokens[entry["source"], entry["split"]] = entry["tokens"]
    return tokens


def corpus_tables() -> str:
    """The contents of the corpora of the three vocabularies, and their rare tokens."""
    vocabularies = sorted({size.vocab_size for size in SIZES.values()})
    corpora = [prepare_corpus(CorpusConfig(vocab_size=size)) for size in vocabularies]
    counted = [tokens_by_source(corpus) for corpus in corpora]
    rows = [
        [source, split, *(f"{tokens[source, split]:,}" for tokens in counted)]
        for source, split in sorted(counted[0], key=lambda key: (key[1], key[0]), reverse=True)
    ]
    rows.append(["all", "both", *(f"{tokens.total():,}" for tokens in counted)])
    tails = [rare_tail(corpus) for corpus in corpora]
    trained = [int(corpus.counts().sum()) for corpus in corpora]
    tail_rows: list[list[object]] = [
        ["tokens that never occur in training", *(len(tail.never) for tail in tails)],
        ["rare tokens: 1 to 9 occurrences", *(len(tail.rare) for tail in tails)],
        [
            "their share of the training tokens",
            *(
                f"{100 * tail.occurrences / total:.4f} %"
                for tail, total in zip(tails, trained, strict=True)
            ),
        ],
    ]
    names = [f"vocabulary {size:,}" for size in vocabularies]
    return (
        table(["source", "split", *names], rows)
        + "\n\n"
        + table(["rare-token tail", *names], tail_rows)
    )


def main() -> None:
    """Measure and publish."""
    torch.set_num_threads(1)
    sizes = sys.argv[1:] or list(SIZES)
    header = ["size", "parameters", "steps"]
    for dtype in Dtype:
        header += [f"{dtype}: steps/s", "tokens/s"]
    speed = table(header, speed_rows(sizes))
    body = (
        "Steps of 8 x 128 tokens of the reference trainer, watched by trimtab, on one core; median "
        "of CPU time, because other work on the machine disturbs the wall clock. No bar: these are "
        "for planning.\n\n"
        f"{speed}\n\nThe corpus, from the standard library of this Python:\n\n{corpus_tables()}"
    )
    publish("Lab", "scripts/bench lab", body)


if __name__ == "__main__":
    main()
