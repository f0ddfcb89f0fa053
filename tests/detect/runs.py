"""Runs with every signal that a detector looks at, and every kind of trouble, from a seed."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from trimtab.core.block import Block, Column, Event

Array = NDArray[np.float64]
Random = np.random.Generator

KINDS = ("resume", "planned change", "evaluation", "checkpoint", "note", "undo")


def walk(random: Random, length: int, size: float) -> Array:
    """A weight norm or a moment: each value follows from the last."""
    return np.asarray(np.exp(np.cumsum(random.normal(0.0, size, length))))


def jitter(random: Random, length: int, size: float) -> Array:
    """A noisy signal: each value is its own."""
    return np.asarray(np.exp(size * random.standard_t(5, length)))


def rate(random: Random, length: int) -> Array:
    """A learning rate: constant, or a warm-up and a cosine that may turn upwards again."""
    at = np.arange(length)
    if random.random() < 0.3:
        return np.full(length, 3e-4)
    warm = np.minimum(1.0, (at + 1) / 20)
    turns = random.choice([1.0, 1.0, 3.0])
    grown = 1.0 + (turns - 1.0) * at / max(length, 1)
    return np.asarray(3e-4 * warm * grown * (1.1 + np.cos(turns * np.pi * at / max(length, 1))))


def scale(random: Random, length: int) -> Array:
    """A loss scale that falls now and then, or for ever."""
    falls = random.random(length) < random.choice([0.0, 0.01, 0.2])
    return np.asarray(65536.0 * 0.5 ** np.minimum(np.cumsum(falls), 40))


def batches(random: Random, length: int) -> Array:
    """Fingerprints, with stretches that were served before."""
    prints = random.integers(0, 2**32, length).astype(np.float64)
    for _ in range(random.integers(0, 3)):
        at, back = int(random.integers(1, length + 1)), int(random.choice([1, 5, 60]))
        for row in range(max(at, back), min(at + 30, length)):
            prints[row] = prints[row - back]
    return prints


def counts(random: Random, length: int) -> Array:
    """An optimizer's count that may stand still or start again."""
    moves = np.ones(length)
    if random.random() < 0.3:
        moves[random.integers(0, length) :][:50] = 0.0
    if random.random() < 0.3:
        moves[random.integers(0, length)] = -200.0
    return np.cumsum(moves)


def tokens(random: Random, length: int) -> Array:
    """The size of the batch: constant, odd at times, changed once, or different each time."""
    sizes = np.full(length, 4096.0)
    apart = random.spawn(1)[0]  # does not change what the other signals draw
    if apart.random() < 0.3:
        sizes[apart.integers(0, length, 5)] = 1024.0
    if random.random() < 0.5:
        sizes[random.integers(0, length) :] = 8192.0
    return random.integers(10, 99, length).astype(np.float64) if random.random() < 0.2 else sizes


def seconds(random: Random, length: int) -> Array:
    """Step times with some stalls, and a pace that may fall."""
    times = 0.5 * jitter(random, length, 0.05)
    times[random.integers(0, length) :][:40:10] *= random.choice([1.0, 40.0])
    times[random.integers(0, length) :] *= random.choice([1.0, 2.0])
    return np.asarray(times)


SIGNALS: dict[str, Callable[[Random, int], Array]] = {
    "loss": lambda random, length: 3.0 + 0.05 * random.standard_t(5, length),
    "grad_norm": lambda random, length: jitter(random, length, 0.1),
    "lr": rate,
    "param_norm": lambda random, length: 100 * walk(random, length, 1e-4),
    "param_norm/mlp": lambda random, length: 50 * walk(random, length, 1e-4),
    "param_norm/embedding": lambda random, length: 50 * walk(random, length, 1e-4),
    "update_norm": lambda random, length: 0.01 * jitter(random, length, 0.05),
    "update_norm/mlp": lambda random, length: 0.01 * jitter(random, length, 0.05),
    "adam_v_norm": lambda random, length: walk(random, length, 0.01),
    "adam_m_norm/mlp": lambda random, length: walk(random, length, 0.02),
    "adam_step": counts,
    "activation_rms/blocks.0": lambda random, length: walk(random, length, 0.003),
    "loss_scale": scale,
    "step_seconds": seconds,
    "tokens_per_second": lambda random, length: 1e5 * jitter(random, length, 0.05),
    "tokens": tokens,
    "fingerprint": batches,
    "unique_token_share": lambda random, length: random.normal(0.4, 0.02, length),
    "token_rarity": lambda random, length: random.normal(3.05, 0.1, length),
    "max_attention_logit": lambda random, length: random.normal(60, 40, length).cumsum() / 30,
    "discarded": lambda random, length: np.asarray(random.random(length) < 0.05, dtype=np.float64),
}


REFERENCES: dict[str, Callable[[Random, int], Array]] = {
    "reference_loss": lambda random, length: random.normal(3.0, 0.01, length),
    "reference_grad_norm": lambda random, length: jitter(random, length, 0.02),
}


def troubled(random: Random, values: Array) -> Array:
    """The signal with jumps, stretches of zeros, slopes and values that are no number."""
    length = len(values)
    for _ in range(random.integers(0, 3)):
        at, span = int(random.integers(0, length)), int(random.choice([1, 2, 30, 200, 2000]))
        part = slice(at, at + span)
        match random.integers(0, 4):
            case 0:
                values[part] *= random.choice([0.01, 0.6, 1.02, 1.5, 20.0])
            case 1:
                values[part] = 0.0
            case 2:
                values[part] *= np.exp(random.choice([-0.01, 0.004]) * np.arange(len(values[part])))
            case 3:
                values[part] = values[at]
    for _ in range(random.integers(0, 3)):
        odd = [np.nan, np.inf, -np.inf, 1e300, 1e-300, 0.0, -1.0]
        values[random.integers(0, length)] = random.choice(odd)
    return values


def every_kind_of_run(seed: int, length: int) -> Block:
    """A run with some of the signals, in any state."""
    random = np.random.default_rng(seed)
    columns = {}
    for name, make in SIGNALS.items():
        if random.random() < 0.3:
            continue
        values = troubled(random, make(random, length))
        share = random.choice([1.0, 1.0, 1.0, 0.9, 0.1])
        columns[name] = Column(values, random.random(length) < share)
    if seed % 5 == 1 and "loss" in columns:
        columns["loss"].values[10:14] = 6e7
    if seed % 5 == 2:  # a schedule that turns, and rises beyond where it was
        at = np.arange(length) / length
        columns["lr"] = Column.complete(1e-3 * (1.0 + at) * (1.1 + np.cos(3 * np.pi * at)))
    if seed % 3 == 1:  # a resume that has left something out
        audit = columns["resume_audit"] = Column.missing(length)
        for at in np.random.default_rng(seed).integers(0, length, 2).tolist():
            audit.values[at], audit.present[at] = float(at), True
    if seed % 3 == 2:  # replicas that part
        differ = np.repeat([0.0, 2.0, 0.0], [length // 3, length // 3, length - 2 * (length // 3)])
        columns["replicas_differ"] = Column.complete(differ)
    if seed % 4 == 0:  # one expert takes all tokens from the middle on
        share = np.where(np.arange(length) < length // 2, 0.3, 0.95)
        columns["expert_max_share/blocks.0"] = Column.complete(share)
    if seed % 4 == 3:  # a policy whose signals leave their past
        dice = np.random.default_rng(seed)
        for name in ("reward", "kl", "entropy", "logprob_gap", "no_signal_share", "eval_reward"):
            values = troubled(dice, 0.5 * jitter(dice, length, 0.02))
            values[length // 2 :] *= dice.choice([0.1, 1.0, 10.0])
            columns[name] = Column(values, dice.random(length) < dice.choice([1.0, 1.0, 0.5]))
    if seed % 4 == 1:  # a held-out loss that rises from the middle on
        held_out = np.abs(np.linspace(-1, 1, length)) + 1
        columns["eval_loss"] = Column(held_out, np.arange(length) % 8 == 0)
    if seed % 4 == 0:
        for name, make in REFERENCES.items():
            columns[name] = Column.complete(make(np.random.default_rng(seed), length))
    strides = np.full(length, random.choice([1, 1, 1, 10]))
    strides[random.integers(0, length, 2)] = random.choice([1, 40, -30])
    step = np.cumsum(strides)
    attempt = np.cumsum(np.diff(step, prepend=step[0]) < 0, dtype=np.int64)
    position = np.arange(length) + 5
    position[random.integers(0, length) :] -= random.choice([0, 3, length])
    ticks = np.arange(length)
    events = [
        Event(kind=str(random.choice(KINDS)), tick=int(tick), step=int(step[tick]) + lag)
        for tick in sorted(random.integers(0, length, random.integers(0, 6)).tolist())
        for lag in (int(random.choice([0, 0, 2])),)
    ]
    if events and "loss" in columns and random.random() < 0.5:  # a loss that does not continue
        columns["loss"].values[events[0].tick :] += 1.0
    return Block.from_columns(
        columns,
        step=step,
        tick=ticks,
        attempt=attempt if random.random() < 0.5 else None,
        data_position=position if random.random() < 0.5 else None,
        events=events,
    )
