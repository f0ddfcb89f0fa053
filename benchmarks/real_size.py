"""GPT-2 with 124M parameters, trained bare and in each mode: `scripts/bench real_size [STEPS]`.

The loops take turns, a step each, with the same weights and data. Some steps of the guarded loops
go wrong as they do in practice: a batch whose loss is NaN, a weight with a flipped bit, and a
learning rate that is changed on purpose, which must be left alone.
"""

import statistics
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from transformers import GPT2Config, GPT2LMHeadModel

import trimtab
from benchmarks.results import publish, table
from trimtab.core.events import UNDO
from trimtab.core.signals import DISCARDED
from trimtab.journal.directory import RunDirectory
from trimtab.journal.reader import read_journal
from trimtab.lab.corpus.data import CorpusSplit
from trimtab.lab.corpus.tokens import CorpusConfig, prepare_corpus

STEPS = 100
TOKENS = (2, 128)
MODES = ("observe", "protect", "recover")
NAN_AT, FLIP_AT, RATE_AT = 0.3, 0.55, 0.8
"""As shares of the run."""


class Loop:
    """One model with its optimizer; the guard is None in the bare loop."""

    def __init__(self, mode: str | None, folder: Path) -> None:
        torch.manual_seed(0)
        config = GPT2Config(resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0)
        self.model = GPT2LMHeadModel(config)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4, fused=True)
        self.folder = folder / (mode or "bare")
        self.guard = None
        if mode is not None:
            self.guard = trimtab.watch(self.model, self.optimizer, run_dir=self.folder, mode=mode)
        self.seconds: list[float] = []
        self.loss = 0.0

    def step(self, tokens: torch.Tensor, scale: float = 1.0) -> None:
        """Take one step and keep its CPU time."""
        started = time.process_time()
        loss = self.model(input_ids=tokens, labels=tokens).loss * scale
        if self.guard is not None:
            self.guard.record(loss=loss, tokens=tokens.numel())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.seconds.append(time.process_time() - started)
        self.loss = float(loss.detach())

    def flip(self) -> None:
        """Flip a high bit of one weight as hardware does, past torch's counters."""
        weight = self.model.transformer.h[3].mlp.c_fc.weight.detach()
        weight.numpy().reshape(-1).view(np.uint32)[7] ^= np.uint32(1 << 29)

    def close(self) -> tuple[int, int]:
        """End the guard; return how many steps it has discarded and how often it has undone."""
        if self.guard is None:
            return 0, 0
        self.guard.close()
        block = read_journal(RunDirectory(self.folder)).block
        undos = sum(event.kind == UNDO for event in block.events)
        return int((block.column(DISCARDED).values == 1.0).sum()), undos

    def has_bits_of(self, other: "Loop") -> bool:
        """Return whether all weights are the same."""
        pairs = zip(self.model.parameters(), other.model.parameters(), strict=True)
        return all(torch.equal(mine, theirs) for mine, theirs in pairs)


def main() -> None:
    """Train, break, and publish."""
    torch.set_num_threads(2)
    steps = int(sys.argv[1]) if len(sys.argv) > 1 else STEPS
    nan_at, flip_at, rate_at = (round(share * steps) for share in (NAN_AT, FLIP_AT, RATE_AT))
    with tempfile.TemporaryDirectory() as name:
        corpus = prepare_corpus(CorpusConfig(vocab_size=4096))
        text = np.concatenate(list(corpus.tokens(CorpusSplit.TRAIN).values()))
        loops = {mode or "bare": Loop(mode, Path(name)) for mode in (None, *MODES)}
        generator = np.random.default_rng(0)
        for step in range(steps):
            tokens = torch.from_numpy(_draw(text, generator))
            for mode, loop in loops.items():
                if step == rate_at:
                    loop.optimizer.param_groups[0]["lr"] *= 0.3
                if step == flip_at and mode == "recover":
                    loop.flip()
                is_spoilt = step == nan_at and mode in ("protect", "recover")
                loop.step(tokens, float("nan") if is_spoilt else 1.0)
        acts = {mode: loop.close() for mode, loop in loops.items()}
        same = "equal" if loops["observe"].has_bits_of(loops["bare"]) else "DIFFERENT"
        rows = [[*_row(mode, loop, loops["bare"]), *acts[mode]] for mode, loop in loops.items()]
    body = (
        f"GPT-2, 124M parameters, random weights, {steps} steps of {TOKENS[0]} x {TOKENS[1]} "
        "tokens of the lab's corpus, 2 threads, loops in turns. `protect` and `recover` meet one "
        f"batch whose loss is NaN (step {nan_at}), `recover` a flipped bit of a weight as well "
        f"(step {flip_at}); all of them a learning rate that is changed on purpose (step "
        f"{rate_at}). Extra time: CPU time of a step over the bare one; what is done at every "
        f"tenth step shows in the mean. Bits of `observe` and bare: {same}.\n\n"
    )
    header = (
        *("loop", "step, median", "extra, median", "extra, mean"),
        *("last loss", "discarded", "undos"),
    )
    publish(
        "A real size",
        f"scripts/bench real_size {steps}",
        body + table(header, rows),
        [("124M parameters, bits of observe and bare", same, "equal")],
    )


def _draw(text: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    starts = generator.integers(0, len(text) - TOKENS[1], TOKENS[0])
    return np.stack([text[at : at + TOKENS[1]] for at in starts]).astype(np.int64)


def _row(mode: str, loop: Loop, bare: Loop) -> list[object]:
    skipped = 3  # the first steps create state
    mine, theirs = loop.seconds[skipped:], bare.seconds[skipped:]
    extra = [
        average(mine) / average(theirs) - 1 for average in (statistics.median, statistics.mean)
    ]
    return [
        mode,
        f"{1e3 * statistics.median(mine):.0f} ms",
        *(f"{100 * share:+.1f} %" for share in extra),
        f"{loop.loss:.3f}",
    ]


if __name__ == "__main__":
    main()
