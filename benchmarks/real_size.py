"""GPT-2 with 124M parameters: `scripts/bench real_size [STEPS] [--tiny]`.

Bare, observe and recover train in processes of their own. Recover meets a batch whose loss is NaN
and a weight with a flipped bit; in all of them the learning rate is changed on purpose, which must
be left alone. `--tiny` tries the benchmark itself with a small model, and publishes nothing.
"""

import argparse
import hashlib
import math
import multiprocessing
import tempfile
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import GPT2Config, GPT2LMHeadModel

import trimtab
from benchmarks.results import Headline, publish, table
from trimtab.core.events import UNDO
from trimtab.core.signals import DISCARDED
from trimtab.journal.directory import RunDirectory
from trimtab.journal.reader import read_journal
from trimtab.lab.corpus.data import CorpusSplit
from trimtab.lab.corpus.tokens import CorpusConfig, prepare_corpus

BARE, OBSERVE, RECOVER = LOOPS = ("bare", "observe", "recover")
LENGTH = 64
NAN_AT, FLIP_AT, RATE_AT = 0.2, 0.35, 0.8
"""As shares of the run: a flip that nobody sees is undone 50 updates later."""
LEFT_ALONE_STEPS = 30
"""Steps after the change of the learning rate in which nothing may be discarded or undone."""
HEADER = ("loop", "steps discarded", "undone at", "loss (against bare)", "change left alone")


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What has become of one run."""

    discarded: list[int]
    undos: list[tuple[int, int]]
    """At which step, and how many updates were lost."""
    loss: float
    digest: str
    """Of the bits of all weights."""

    def undone(self) -> str:
        return ", ".join(f"step {at}, {lost} updates lost" for at, lost in self.undos) or "none"

    def row(self, rate_at: int, bare_loss: float) -> list[str]:
        acts = {*self.discarded, *(step for step, _ in self.undos)}
        first, last = min(self.discarded, default=0), max(self.discarded, default=0)
        return [
            f"{len(self.discarded)} from {first} to {last}" if self.discarded else "none",
            self.undone(),
            f"{self.loss:.3f} ({self.loss - bare_loss:+.3f})",
            "yes" if acts.isdisjoint(range(rate_at, rate_at + LEFT_ALONE_STEPS)) else "NO",
        ]


def events_at(steps: int) -> tuple[int, int, int]:
    """The steps of the NaN, the flip and the change of the learning rate."""
    return round(NAN_AT * steps), round(FLIP_AT * steps), round(RATE_AT * steps)


def draw(split: CorpusSplit, generator: np.random.Generator, rows: int) -> torch.Tensor:
    """Draw sequences from anywhere in a part of the lab's corpus."""
    corpus = prepare_corpus(CorpusConfig(vocab_size=4096))
    text = np.concatenate(list(corpus.tokens(split).values()))
    starts = generator.integers(0, len(text) - LENGTH, rows)
    return torch.from_numpy(np.stack([text[at : at + LENGTH] for at in starts]).astype(np.int64))


def train(mode: str, folder: Path, steps: int, is_tiny: bool) -> Outcome:
    """Train one loop, and break it if it can recover."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    small = {"n_layer": 4, "n_embd": 64, "n_head": 2} if is_tiny else {}
    config = GPT2Config(resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, **small)
    model: Any = GPT2LMHeadModel(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    watched = OBSERVE if mode == BARE else mode
    batches = draw(CorpusSplit.TRAIN, np.random.default_rng(0), steps)
    nan_at, flip_at, rate_at = events_at(steps)
    with trimtab.watch(
        model, optimizer, run_dir=folder, mode=watched, enabled=mode != BARE
    ) as guard:
        for step, tokens in enumerate(batches[:, None]):
            if step == rate_at:
                optimizer.param_groups[0]["lr"] *= 0.3
            if step == flip_at and mode == RECOVER:
                # As hardware does it, past torch's counters: 0.02 becomes 1e36, every loss NaN.
                weight = model.transformer.h[3].mlp.c_fc.weight.detach()
                weight.numpy().reshape(-1).view(np.uint32)[7] ^= np.uint32(1 << 30)
            loss = model(input_ids=tokens, labels=tokens).loss
            loss = loss * math.nan if step == nan_at and mode == RECOVER else loss
            guard.record(loss=loss, tokens=tokens.numel())
            loss.backward()
            guard.clip_grad_norm_(1.0)
            optimizer.step()
            optimizer.zero_grad()
    held_out = draw(CorpusSplit.HELD_OUT, np.random.default_rng(0), 16)
    with torch.no_grad():
        final = float(model(input_ids=held_out, labels=held_out).loss)
    digest = hashlib.blake2b()
    for parameter in model.parameters():
        digest.update(parameter.detach().numpy().tobytes())
    discarded, undos = [], []
    if mode != BARE:
        block = read_journal(RunDirectory(folder)).block
        discarded = block.step[block.column(DISCARDED).values == 1.0].tolist()
        undos = [(e.step, int(e.facts["updates_lost"])) for e in block.events if e.kind == UNDO]
    return Outcome(discarded=discarded, undos=undos, loss=final, digest=digest.hexdigest())


def measure(steps: int, *, is_tiny: bool) -> tuple[str, list[Headline]]:
    """Train all loops, two processes at a time, and tell what has become of them."""
    with tempfile.TemporaryDirectory() as name:
        # One process a loop, so that its memory is free again after it.
        context = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(2, mp_context=context, max_tasks_per_child=1) as pool:
            run = partial(train, steps=steps, is_tiny=is_tiny)
            outcomes = pool.map(run, LOOPS, [Path(name) / mode for mode in LOOPS])
            found = dict(zip(LOOPS, outcomes, strict=True))
    same = "equal" if found[OBSERVE].digest == found[BARE].digest else "DIFFERENT"
    nan_at, flip_at, rate_at = events_at(steps)
    rows = [[mode, *one.row(rate_at, found[BARE].loss)] for mode, one in found.items()]
    body = (
        f"GPT-2, 124M parameters, random weights, {steps} steps of {LENGTH} tokens of the lab's "
        f"corpus, one thread. `recover` meets a batch whose loss is NaN (step {nan_at}) and a "
        f"flipped bit, by which one weight is 1e36 and every loss NaN (step {flip_at}). In all "
        f"runs the learning rate is multiplied by 0.3 on purpose (step {rate_at}): left alone "
        f"means that nothing was discarded or undone in the {LEFT_ALONE_STEPS} steps after it. "
        "Loss: on held-out text after the last step.\n\n" + table(HEADER, rows)
    )
    ours = found[RECOVER]
    return body, [
        ("124M parameters, bits of observe and bare", same, "equal"),
        (f"a weight of 1e36 at step {flip_at}, recover", ours.undone(), "undone"),
        (
            "held-out loss at the end, recover",
            f"{ours.loss:.2f}, bare {found[BARE].loss:.2f}",
            "-",
        ),
    ]


def main() -> None:
    """Measure and publish."""
    parser = argparse.ArgumentParser(prog="scripts/bench real_size", description=__doc__)
    parser.add_argument("steps", type=int, nargs="?", default=150)
    parser.add_argument("--tiny", action="store_true")
    given = parser.parse_args()
    body, headlines = measure(given.steps, is_tiny=given.tiny)
    command = f"scripts/bench real_size {given.steps}"
    publish("A real size: outcome", command, body, headlines, is_dry=given.tiny)


if __name__ == "__main__":
    main()
