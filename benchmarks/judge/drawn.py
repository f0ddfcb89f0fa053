"""Runs that are drawn, not trained: the playbook's incidents, and runs that go wrong at once.

Each is drawn to the numbers of a published description, with noise, twenty times. They are no real
runs: they ask whether the judge says of a textbook case what the textbook says.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from tests.kit.synthetic import block_of

from trimtab.core.block import Block, FloatArray
from trimtab.core.incidents import IncidentClass

VARIANTS = 20

Make = Callable[[np.random.Generator], tuple[FloatArray, FloatArray, int]]
"""Draws loss and gradient norm, and says at which step it begins."""


@dataclass(frozen=True, kw_only=True)
class Drawn:
    """A drawn run and what is asked of the judge."""

    kind: str
    block: Block
    at: int
    """The step at which it begins; 0 if nothing is wrong."""
    classes: tuple[IncidentClass, ...] = ()
    """Any of them is right; none: the class does not matter."""
    waits: bool | None = None
    """Whether the advice must be to wait, or must not; None: it does not matter."""
    symptom: str = ""
    within: int = 0
    """Records in which it must be found; 0: as many as for a fault."""
    may_be_silent: bool = False
    """Whether no incident at all is right as well."""


def make_block(loss: FloatArray, norm: FloatArray | None, lr: FloatArray | None = None) -> Block:
    signals = {"loss": loss, "grad_norm": norm, "lr": lr}
    return block_of({name: values for name, values in signals.items() if values is not None})


def _norms(dice: np.random.Generator, count: int, level: float = 0.6) -> FloatArray:
    return level * np.exp(0.12 * dice.standard_normal(count))


def _falling(count: int, end: float, dice: np.random.Generator) -> FloatArray:
    """A loss that reaches `end` slowly, without its noise."""
    start = end + dice.uniform(1.0, 3.0)
    return end + (start - end) * np.exp(-np.arange(count) / (count / 6))


def playbook() -> Iterator[Drawn]:
    """The playbook's incidents."""
    for make in (_type1, _type2, _type3, _worked, _lr_jump, _slow_divergence, _plateau):
        for seed in range(VARIANTS):
            yield make(np.random.default_rng([seed, 7]), seed)


def _base(dice: np.random.Generator, count: int, end: float) -> tuple[FloatArray, float, int]:
    noise = float(dice.uniform(0.008, 0.03)) * end
    at = int(dice.integers(500, 900))
    return _falling(count, end, dice), noise, at


def _spike(at: int, count: int, height: float, up: int, down: float) -> FloatArray:
    """A ramp up over `up` records and an exponential way back that takes `down` records to 5 %."""
    since = np.arange(count) - at
    ramp = np.clip(since / up, 0, 1)
    back = np.exp(-3 * np.clip(since - up, 0, None) / down) if down else np.ones(count)
    return height * ramp * back * (since > 0)


def _norm_spike(norm: FloatArray, at: int, times: float, length: int) -> FloatArray:
    norm = norm.copy()
    norm[at : at + length] *= times * np.exp(-np.arange(length) / (length / 3))
    return np.maximum(norm, 0.3)


def _type1(dice: np.random.Generator, seed: int) -> Drawn:
    count = 2200
    loss, noise, at = _base(dice, count, 2.1)
    loss = loss + _spike(at, count, dice.uniform(1.2, 3.0), 20, dice.uniform(300, 500))
    norm = _norm_spike(_norms(dice, count), at, dice.uniform(8, 70), 20) if seed % 3 else None
    loss = loss + noise * dice.standard_normal(count)
    return Drawn(
        kind="type 1, back in 500 steps",
        block=make_block(loss, norm),
        at=at,
        classes=(IncidentClass.RECOVERED, IncidentClass.RECOVERING),
        waits=True,
    )


def _type2(dice: np.random.Generator, seed: int) -> Drawn:
    count = 2200
    loss, noise, at = _base(dice, count, 2.1)
    height, stays = dice.uniform(1.2, 3.0), dice.uniform(0.3, 0.8)
    since = np.arange(count) - at
    loss = loss + _spike(at, count, height, 20, 120) + stays * np.clip(since / 20, 0, 1)
    norm = _norm_spike(_norms(dice, count), at, dice.uniform(8, 70), 20) if seed % 3 else None
    loss = loss + noise * dice.standard_normal(count)
    return Drawn(
        kind="type 2, settles higher",
        block=make_block(loss, norm),
        at=at,
        classes=(IncidentClass.LINGERING,),
        waits=False,
    )


def _type3(dice: np.random.Generator, seed: int) -> Drawn:
    count = 1600
    loss, noise, at = _base(dice, count, 2.1)
    since = np.clip(np.arange(count) - at, 0, None)
    height = dice.uniform(3, 7)
    form = seed % 3
    if form == 0:  # climbs on
        rise = height * (1 - np.exp(-since / 60)) + 0.002 * since
    elif form == 1:  # oscillates wildly
        rise = (since > 0) * (height + 0.7 * height * np.sin(since / 9.0))
    else:  # ends in NaN
        rise = height * (1 - np.exp(-since / 40))
    loss = loss + rise + noise * dice.standard_normal(count) * (1 + 4 * (since > 0))
    if form == 2:
        loss[at + 150 :] = math.nan
    norm = _norms(dice, count) * np.where(since > 0, dice.uniform(5, 30), 1.0)
    return Drawn(
        kind="type 3, never back",
        block=make_block(loss, norm),
        at=at,
        classes=(IncidentClass.DIVERGENT, IncidentClass.DEAD),
        waits=False,
    )


def _worked(dice: np.random.Generator, seed: int) -> Drawn:
    """2.31 -> 5.84 at step 313, settles at 3.40 by step 360; gradient norm 47.2 against 0.6."""
    count, at = 2000, 312
    steps = np.arange(count)
    loss = 2.31 + 8.5 * np.exp(-steps / 60.0)
    since = steps - at
    settled = 1.09 + 2.44 * np.exp(-np.clip(since - 1, 0, None) / 14.0)
    loss = loss + np.where(since > 0, settled, 0.0) - 0.0001 * np.clip(since, 0, None)
    loss = loss + dice.uniform(0.02, 0.05) * dice.standard_normal(count)
    norm = _norms(dice, count)
    norm[at : at + 6] = 47.2 * np.array([1.0, 0.5, 0.25, 0.12, 0.07, 0.04])
    norm[at + 6 :] *= 1.4
    rate = 3e-4 * np.minimum(steps / 100, 0.5 * (1 + np.cos(np.pi * steps / count)))
    return Drawn(
        kind="the worked spike",
        block=make_block(loss, norm, rate),
        at=at,
        classes=(IncidentClass.LINGERING,),
        waits=False,
    )


def _lr_jump(dice: np.random.Generator, seed: int) -> Drawn:
    count = 1400
    loss, noise, at = _base(dice, count, 2.1)
    since = np.clip(np.arange(count) - at, 0, None)
    times = dice.uniform(5, 30)
    rate = 3e-4 * np.where(since > 0, times, 1.0)
    loss = loss + 0.25 * times**0.5 * (1 - np.exp(-since / 30.0))
    loss = loss + noise * dice.standard_normal(count)
    norm = _norms(dice, count) * np.where(since > 0, 2.0, 1.0)
    return Drawn(
        kind="LR jump",
        block=make_block(loss, norm, rate),
        at=at,
        waits=False,
        symptom="learning rate jumped",
    )


def _slow_divergence(dice: np.random.Generator, seed: int) -> Drawn:
    count = 2000
    loss, noise, at = _base(dice, count, 2.1)
    since = np.clip(np.arange(count) - at, 0, None)
    loss = loss + dice.uniform(0.0008, 0.003) * since + noise * dice.standard_normal(count)
    norm = _norms(dice, count) * np.exp(since / 900)
    return Drawn(
        kind="slow divergence",
        block=make_block(loss, norm),
        at=at,
        classes=(IncidentClass.DIVERGENT, IncidentClass.LINGERING),
        waits=False,
    )


def _plateau(dice: np.random.Generator, seed: int) -> Drawn:
    """The loss stays where it is: done, or check the evaluation. No rollback."""
    count = 2500
    loss, noise, _ = _base(dice, count, 2.1)
    loss = np.maximum(loss, loss[1200]) + noise * dice.standard_normal(count)
    return Drawn(
        kind="plateau",
        block=make_block(loss, _norms(dice, count)),
        at=0,
        classes=(IncidentClass.PLATEAU,),
        may_be_silent=True,
    )


def bad_starts() -> Iterator[Drawn]:
    """Runs that explode in their first records, never learn, or die."""
    for seed, (kind, make) in enumerate(BAD_STARTS):
        dice = np.random.default_rng([seed, 9])
        loss, norm, at = make(dice)
        within = len(loss) if kind.startswith("never") else 64
        yield Drawn(kind=kind, block=make_block(loss, norm), at=at, within=within)


def _explodes(start: float, peak: float, at: int, count: int, *, stays: bool) -> Make:
    def make(dice: np.random.Generator) -> tuple[FloatArray, FloatArray, int]:
        steps = np.arange(count)
        loss = start * np.exp(-steps / 400.0)
        since = steps - at
        back = 1.0 if stays else np.exp(-np.clip(since, 0, None) / 12.0)
        loss = loss + np.where(
            since >= 0, (peak - start) * np.clip((since + 1) / 3, 0, 1) * back, 0
        )
        loss = loss * (1 + 0.01 * dice.standard_normal(count))
        return loss, _norms(dice, count) * np.where(since >= 0, 20.0, 1.0), at

    return make


def _never(level: float, noise: float, count: int) -> Make:
    def make(dice: np.random.Generator) -> tuple[FloatArray, FloatArray, int]:
        loss = level + noise * dice.standard_normal(count)
        loss[0] += 4 * noise  # the first record is high by chance
        return loss, _norms(dice, count), 1

    return make


def _dies(kind: str, count: int = 900, at: int = 400) -> Make:
    def make(dice: np.random.Generator) -> tuple[FloatArray, FloatArray, int]:
        loss = 1.0 + 2.0 * np.exp(-np.arange(count) / 120.0) + 0.05 * dice.standard_normal(count)
        norm = _norms(dice, count)
        if kind == "policy":  # a policy loss returns to 0 in a dead policy
            loss = 0.05 * dice.standard_normal(count)
            loss[at:] = 0.0
            norm[at:] = 0.0
        elif kind == "gradient":
            norm[at:] = 0.0
        elif kind == "tiny":
            norm[at:] *= 1e-9
        else:  # the output is a constant
            loss[at:] = 2.302585
        return loss, norm, at

    return make


BAD_STARTS: tuple[tuple[str, Make], ...] = (
    ("12 -> 48 at step 3", _explodes(12, 48, 3, 120, stays=True)),
    ("12 -> 48 at step 3, back", _explodes(12, 48, 3, 120, stays=False)),
    ("11.7 -> 20.4 at step 20", _explodes(11.7, 20.4, 20, 200, stays=True)),
    ("11.7 -> 20.4 at step 20, 64 records", _explodes(11.7, 20.4, 20, 64, stays=True)),
    ("2.3 -> 1e6 at step 10", _explodes(2.3, 1e6, 10, 100, stays=True)),
    ("0.7 -> 9 at step 8", _explodes(0.7, 9, 8, 80, stays=True)),
    ("10.8 -> 30 at step 40", _explodes(10.8, 30, 40, 300, stays=True)),
    ("2.3 -> 7 at step 15", _explodes(2.3, 7.0, 15, 100, stays=True)),
    ("6.9 -> 14 at step 30", _explodes(6.9, 14, 30, 400, stays=True)),
    ("0.01 -> 2 at step 12", _explodes(0.01, 2.0, 12, 60, stays=True)),
    ("never: ln 10", _never(2.3026, 0.03, 3000)),
    ("never: ln 2", _never(0.6931, 0.02, 3000)),
    ("never: ln 50257", _never(10.825, 0.02, 2600)),
    ("never: ln 1000, noisy", _never(6.9078, 0.15, 3000)),
    ("never: regression", _never(1.0, 0.08, 3000)),
    ("dead policy", _dies("policy")),
    ("dead gradient", _dies("gradient")),
    ("gradient 1e-9", _dies("tiny")),
    ("constant output", _dies("output")),
    ("dead policy, early", _dies("policy", 300, 60)),
)
