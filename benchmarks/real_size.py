"""GPT-2 with 124M parameters: `scripts/bench real_size [STEPS] [--tiny]`.

Bare, observe, protect and recover, and recover on two ranks of FSDP2, train in processes of their
own, and meet a batch whose loss is NaN, a weight with a flipped bit, and a learning rate that is
changed on purpose, which must be left alone. `--tiny` tries the benchmark itself with a small
model, and publishes nothing.
"""

import argparse
import hashlib
import math
import multiprocessing
import tempfile
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch.distributed.fsdp import fully_shard
from transformers import GPT2Config, GPT2LMHeadModel

import trimtab
from benchmarks.results import Headline, publish, table
from trimtab.core.errors import NonFiniteRun
from trimtab.core.events import UNDO
from trimtab.core.signals import DISCARDED
from trimtab.journal.directory import RunDirectory
from trimtab.journal.reader import read_journal
from trimtab.lab.corpus.data import CorpusSplit
from trimtab.lab.corpus.tokens import CorpusConfig, prepare_corpus
from trimtab.lab.trainer.local_ranks import run_ranks

BARE, OBSERVE, PROTECT, RECOVER = "bare", "observe", "protect", "recover"
LOOPS = (BARE, OBSERVE, PROTECT, RECOVER)
SHARDED, WORLD = "recover, FSDP2 on 2 ranks", 2
TOKENS = (1, 64)
NAN_AT, FLIP_AT, RATE_AT = 0.2, 0.35, 0.8
"""As shares of the run: a flip that nobody sees is undone 50 updates later."""
LEFT_ALONE_STEPS = 30
"""Steps after the change of the learning rate in which nothing may be discarded or undone."""
TIMEOUT_SECONDS = 7200.0
"""For both ranks: a step of theirs takes 2 s on two free cores, and several on busy ones."""


class Loop:
    """One model with its optimizer; there is no guard in the bare loop."""

    def __init__(self, mode: str, folder: Path, *, is_tiny: bool, is_sharded: bool = False) -> None:
        torch.manual_seed(0)
        small = {"n_layer": 4, "n_embd": 64, "n_head": 2} if is_tiny else {}
        config = GPT2Config(resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, **small)
        self.model = GPT2LMHeadModel(config)
        if is_sharded:
            for block in self.model.transformer.h:
                fully_shard(block)
            fully_shard(self.model)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4, fused=True)
        self.folder = folder
        self._guard = None
        if mode != BARE:
            self._guard = trimtab.watch(self.model, self.optimizer, run_dir=folder, mode=mode)

    def step(self, tokens: torch.Tensor, scale: float = 1.0) -> None:
        loss = self.model(input_ids=tokens, labels=tokens).loss * scale
        if self._guard is not None:
            self._guard.record(loss=loss, tokens=tokens.numel())
        loss.backward()
        if self._guard is not None:
            self._guard.clip_grad_norm_(1.0)
        else:
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad()

    def flip(self) -> None:
        """Flip the highest bit of a weight's exponent as hardware does, past torch's counters.

        A weight of 0.02 becomes 1e36, and every loss NaN.
        """
        weight = _local(self.model.transformer.h[3].mlp.c_fc.weight)
        weight.numpy().reshape(-1).view(np.uint32)[7] ^= np.uint32(1 << 30)

    def close(self) -> None:
        if self._guard is not None:
            self._guard.close()

    def held_out_loss(self, tokens: torch.Tensor) -> float:
        with torch.no_grad():
            return float(self.model(input_ids=tokens, labels=tokens).loss)

    def is_finite(self) -> bool:
        return all(bool(_local(p).isfinite().all()) for p in self.model.parameters())

    def digest(self) -> str:
        """Return a digest of the bits of all weights of this rank."""
        digest = hashlib.blake2b()
        for parameter in self.model.parameters():
            digest.update(_local(parameter).numpy().tobytes())
        return digest.hexdigest()


def _local(parameter: torch.Tensor) -> torch.Tensor:
    held = parameter.detach()
    return held.to_local() if hasattr(held, "to_local") else held


def read_text(split: CorpusSplit) -> np.ndarray:
    """Return all tokens of a part of the lab's corpus."""
    corpus = prepare_corpus(CorpusConfig(vocab_size=4096))
    return np.concatenate(list(corpus.tokens(split).values()))


def draw(text: np.ndarray, generator: np.random.Generator, shape: tuple[int, int]) -> torch.Tensor:
    """Draw sequences from anywhere in the text."""
    starts = generator.integers(0, len(text) - shape[1], shape[0])
    return torch.from_numpy(np.stack([text[at : at + shape[1]] for at in starts]).astype(np.int64))


@dataclass(frozen=True, slots=True)
class Outcome:
    """What has become of one run; on two ranks, what the first knows of it."""

    discarded: list[int]
    undos: list[tuple[int, int]]
    """At which step, and how many updates were lost."""
    loss: float
    is_finite: bool
    digest: str

    def undone(self) -> str:
        return ", ".join(f"step {at}, {lost} updates lost" for at, lost in self.undos) or "none"

    def row(self, rate_at: int, bare_loss: float) -> list[str]:
        acts = {*self.discarded, *(step for step, _ in self.undos)}
        has_acted = not acts.isdisjoint(range(rate_at, rate_at + LEFT_ALONE_STEPS))
        return [
            _spans(self.discarded),
            self.undone(),
            f"{self.loss:.3f} ({self.loss - bare_loss:+.3f})",
            "yes" if self.is_finite else "NO",
            "NO" if has_acted else "yes",
        ]


HEADER = (
    *("loop", "steps discarded", "undone at", "loss (against bare)"),
    *("all weights finite", "change left alone"),
)


def train(rank: int | None, mode: str, folder: Path, steps: int, is_tiny: bool) -> Outcome:
    """Train and break one loop; on ranks, the last one alone is broken."""
    torch.set_num_threads(1)
    loop = Loop(mode, folder, is_tiny=is_tiny, is_sharded=rank is not None)
    text, generator = read_text(CorpusSplit.TRAIN), np.random.default_rng(rank or 0)
    nan_at, flip_at, rate_at = (round(share * steps) for share in (NAN_AT, FLIP_AT, RATE_AT))
    is_broken = mode in (PROTECT, RECOVER) and rank in (None, WORLD - 1)
    with suppress(NonFiniteRun):  # protect ends a run after 100 steps that are not finite
        for step in range(steps):
            if step == rate_at:
                loop.optimizer.param_groups[0]["lr"] *= 0.3
            if step == flip_at and is_broken:
                loop.flip()
            is_spoilt = step == nan_at and is_broken
            loop.step(draw(text, generator, TOKENS), math.nan if is_spoilt else 1.0)
    loop.close()
    held_out = draw(read_text(CorpusSplit.HELD_OUT), np.random.default_rng(0), (16, 64))
    loss, is_finite, digest = loop.held_out_loss(held_out), loop.is_finite(), loop.digest()
    if mode == BARE or rank:  # the first rank keeps the journal
        return Outcome([], [], loss, is_finite, digest)
    block = read_journal(RunDirectory(folder)).block
    discarded = block.step[block.column(DISCARDED).values == 1.0].tolist()
    undos = [(e.step, int(e.facts["updates_lost"])) for e in block.events if e.kind == UNDO]
    return Outcome(discarded, undos, loss, is_finite, digest)


def measure(steps: int, *, is_tiny: bool) -> tuple[str, list[Headline]]:
    """Train all loops, two processes at a time, and tell what has become of them."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        given = (RECOVER, folder / "ranks", steps, is_tiny)
        ranks = run_ranks(train, WORLD, *given, timeout=TIMEOUT_SECONDS)
        # One process a loop, so that its memory is free again after it.
        context = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(2, mp_context=context, max_tasks_per_child=1) as pool:
            run = partial(train, None, steps=steps, is_tiny=is_tiny)
            alone = pool.map(run, LOOPS, [folder / mode for mode in LOOPS])
            found = dict(zip(LOOPS, alone, strict=True))
    found[SHARDED] = replace(ranks[0], is_finite=all(one.is_finite for one in ranks))
    same = "equal" if found[OBSERVE].digest == found[BARE].digest else "DIFFERENT"
    nan_at, flip_at, rate_at = (round(share * steps) for share in (NAN_AT, FLIP_AT, RATE_AT))
    rows = [[mode, *one.row(rate_at, found[BARE].loss)] for mode, one in found.items()]
    body = (
        f"GPT-2, 124M parameters, random weights, {steps} steps of {TOKENS[0]} x "
        f"{TOKENS[1]} tokens of the lab's corpus, one thread; as many tokens on each of "
        f"two gloo ranks under `fully_shard`. `protect` and `recover` meet a batch whose loss is "
        f"NaN (step {nan_at}) and a flipped bit, by which one weight is 1e36 and every loss NaN "
        f"(step {flip_at}); of two ranks the second alone. In all runs the learning rate is "
        f"multiplied by 0.3 on purpose (step {rate_at}): left alone means that nothing was "
        f"discarded or undone in the {LEFT_ALONE_STEPS} steps after it. Loss: on held-out text "
        "after the last step. `protect` has nothing to go back to. Bits of `observe` and bare: "
        f"{same}.\n\n" + table(HEADER, rows)
    )
    headlines: list[Headline] = [("124M parameters, bits of observe and bare", same, "equal")]
    for mode in (RECOVER, SHARDED):
        one = found[mode]
        headlines.append((f"a weight of 1e36 at step {flip_at}, {mode}", one.undone(), "undone"))
        loss = f"{one.loss:.2f}, bare {found[BARE].loss:.2f}"
        headlines.append((f"held-out loss at the end, {mode}", loss, "-"))
    return body, headlines


def _spans(steps: Sequence[int]) -> str:
    """Return numbers as in `90, 165-217`."""
    firsts = [step for step in steps if step - 1 not in steps]
    lasts = [step for step in steps if step + 1 not in steps]
    spans = zip(firsts, lasts, strict=True)
    return ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in spans) or "none"


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
