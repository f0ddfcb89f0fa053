"""Damaged weights under the gate, and what the gate lets through.

A language model is trained for 600 steps; then its weights are damaged from outside, or one step
has a learning rate that is far too high. What counts is the mean loss of the next 40 steps.
"""

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from tests.kit.gate_rule import Outcome, make_rule, run_rule
from torch import nn

from benchmarks.results import Headline, table
from benchmarks.zoo.kinds import LanguageModel, loss_on, markov, windows
from benchmarks.zoo.session import Session, adamw

SEEDS = range(5)
STUDENT_T = 2.776
"""Of 95 % with four degrees of freedom."""
BEFORE, AFTER = 600, 40
RATE = 3e-3

Stream = list[tuple[float, float]]
Run = tuple[Session, nn.Module, torch.optim.Optimizer]


@dataclass(frozen=True)
class Damage:
    """What is done to a run at step 600."""

    title: str
    factor: float
    is_of_rate: bool = False
    """Whether the learning rate of one step is multiplied, or the weights of the head."""


DAMAGES = (
    Damage("head multiplied by -3", -3.0),
    Damage("one step with 333 times the learning rate", 333.0, is_of_rate=True),
    Damage("head multiplied by 3", 3.0),
    Damage("head multiplied by 100", 100.0),
)


def report() -> tuple[str, list[Headline]]:
    """Both tables."""
    runs = [_trained(seed) for seed in SEEDS]
    rows = [_damage_row(damage, runs) for damage in DAMAGES]
    header = ("damage", "loss of the next 40 steps, bare", "change", "discarded", "scaled")
    text = (
        f"A language model whose weights are damaged at step {BEFORE}, {len(SEEDS)} seeds: mean "
        f"loss of the next {AFTER} steps without the gate, and with it minus without it (95 % "
        "interval).\n\n"
        + table(header, rows)
        + "\n\nStreams of loss and gradient norm that are made up, 500 calm steps first: what the "
        "gate does to them.\n\n"
        + table(
            ("stream", "steps", "discarded", "scaled", "taken"), list(map(_stream_row, STREAMS))
        )
    )
    return text, [
        (f"loss after damage that training heals ({row[0]}), change by the gate", row[2], "0")
        for row in rows[:2]
    ]


def _trained(seed: int) -> Run:
    """A run with the gate, up to the damage."""
    session, text = Session(seed, make_rule()), markov(1, 2.0)
    model = LanguageModel()
    optimizer = adamw(model, RATE)
    for _ in range(BEFORE):
        rows = windows(text, session, 32, 16)
        session.step(optimizer, loss_on(model, rows), clip=1.0)
    return session, model, optimizer


def _damage_row(damage: Damage, runs: Sequence[Run]) -> list[object]:
    bare, changes, outcomes = [], [], []
    for run in runs:
        gated, plain = _fork(run, gate=True), _fork(run, gate=False)
        bare.append(_continue(plain, damage))
        changes.append(_continue(gated, damage) - bare[-1])
        outcomes += gated[0].outcomes
    interval = STUDENT_T * float(np.std(changes, ddof=1)) / math.sqrt(len(changes))
    change = f"{np.mean(changes):+.3f} ± {interval:.3f}"
    return [damage.title, f"{np.mean(bare):.3f}", change, *_counts(outcomes)]


def _fork(run: Run, *, gate: bool) -> Run:
    """A copy of a run that continues with the gate or without it."""
    session, model, optimizer = run
    copied = Session(session.seed, copy.deepcopy(session.rule) if gate else None)
    copied.generator.set_state(session.generator.get_state())
    return copied, *copy.deepcopy((model, optimizer))


def _continue(run: Run, damage: Damage) -> float:
    """Damage the run and train on; returns the mean loss of the steps after the first."""
    session, model, optimizer = run
    text = markov(1, 2.0)
    if not damage.is_of_rate:
        with torch.no_grad():
            model.get_parameter("head.weight").mul_(damage.factor)
    for number in range(AFTER + 1):
        is_wrong = damage.is_of_rate and number == 0
        optimizer.param_groups[0]["lr"] = RATE * (damage.factor if is_wrong else 1.0)
        rows = windows(text, session, 32, 16)
        session.step(optimizer, loss_on(model, rows), clip=1.0)
    return float(np.mean([loss for loss, _ in session.stream[1:]]))


def _counts(outcomes: Sequence[Outcome]) -> tuple[int, int]:
    """How many steps were discarded, and how many scaled."""
    discarded = sum(outcome.discarded for outcome in outcomes)
    return discarded, sum(outcome.shrink > 1 for outcome in outcomes if not outcome.discarded)


def calm(count: int, seed: int = 0) -> Stream:
    """A loss and a norm that stay where they are."""
    dice = np.random.default_rng(seed)
    return [
        (2.5 + 0.02 * dice.standard_normal(), 0.3 * math.exp(0.1 * dice.standard_normal()))
        for _ in range(count)
    ]


def growing(rate: float) -> Stream:
    """The norm grows by a share each step, for 300 steps."""
    return [
        (loss, norm * math.exp(rate * number)) for number, (loss, norm) in enumerate(calm(300, 1))
    ]


def recurring(gap: int, loss: float = 1.8, norm: float = 30.0) -> Stream:
    """A step that the gate takes for an accident, once in `gap` steps; 20,000 steps."""
    return [
        (a * loss, b * norm) if number % gap == gap - 1 else (a, b)
        for number, (a, b) in enumerate(calm(20_000, 1))
    ]


def one(loss: float, norm: float) -> Stream:
    stream = calm(50, 1)
    stream[20] = (stream[20][0] * loss, stream[20][1] * norm)
    return stream


def early(at: int) -> Stream:
    """Loss times 20 and norm times a million, soon after the start."""
    stream = calm(at + 1, 1)
    stream[at] = (stream[at][0] * 20, stream[at][1] * 1e6)
    return stream


STREAMS: tuple[tuple[str, bool, Callable[[], Stream], int], ...] = (
    *(
        (f"norm grows by {100 * rate:.0f} % a step", True, lambda rate=rate: growing(rate), 300)
        for rate in (0.03, 0.05)
    ),
    *(
        (f"loss x {loss}, norm x {norm}, once", True, lambda a=loss, b=norm: one(a, b), 1)
        for loss, norm in ((1, 8), (1.5, 9.9), (20, 9.9))
    ),
    *(
        (f"loss x 20, norm x 1e6, at step {at}", False, lambda at=at: early(at), 1)
        for at in (20, 60)
    ),
    *(
        (
            f"loss x 1.8, norm x 30, once in {gap:,} steps",
            True,
            lambda gap=gap: recurring(gap),
            20_000 // gap,
        )
        for gap in (100, 1000, 4000)
    ),
)
"""What it is called, whether calm steps come first, the stream, how many of its steps are odd."""


def _stream_row(entry: tuple[str, bool, Callable[[], Stream], int]) -> list[object]:
    title, is_late, make, count = entry
    outcomes = run_rule(make_rule(), (calm(500) if is_late else []) + make())
    discarded, scaled = _counts(outcomes)
    return [title, count, discarded, scaled, count - discarded - scaled]
