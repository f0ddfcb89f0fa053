"""A run as it was, and what a writer put down of it: the truth that readers are held against."""

import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """One record of a run."""

    step: int
    loss: float
    grad_norm: float
    lr: float
    loss_scale: float
    seconds: float
    tokens_per_second: float
    eval_loss: float | None = None


def story(stride: int = 1, seed: int = 0, *, evaluated: bool = True) -> list[Moment]:
    """Steps with a NaN loss, an infinite norm, a gap, and a restart that repeats some of them."""
    rng = random.Random(seed)
    numbers = [*range(1, 21), *range(30, 41), *range(36, 50)]
    moments = [
        Moment(
            step=number * stride,
            loss=2 + 8 / number + rng.random(),
            grad_norm=math.exp(rng.gauss(0, 0.5)),
            lr=3e-4 * number / 50,
            loss_scale=2.0 ** (16 - number // 12),
            seconds=0.4 + rng.random() / 10,
            tokens_per_second=1e6 + 1e5 * rng.random(),
            eval_loss=3 + rng.random() if evaluated and number % 10 == 0 else None,
        )
        for number in numbers
    ]
    moments[11] = replace(moments[11], loss=math.nan)
    moments[12] = replace(moments[12], grad_norm=math.inf)
    moments[14] = replace(moments[14], loss=math.inf, grad_norm=math.nan)
    return moments


@dataclass(slots=True)
class Ink:
    """Formats numbers, and remembers what was printed: that is what has to be read."""

    rows: list[dict[str, float]] = field(default_factory=list)

    def record(self, step: int, spec: str = "d") -> str:
        """Begin a record; its step as it is printed."""
        self.rows.append({"step": step})
        return format(step, spec)

    def __call__(self, signal: str, value: float, spec: str, scale: float = 1.0) -> str:
        """The value as it is printed."""
        text = format(value, spec)
        self.rows[-1][signal] = float(text.replace(",", "")) * scale
        return text

    def truth(self, signal: str, value: float) -> None:
        """What has to be read although it was printed otherwise, or not at all."""
        self.rows[-1][signal] = value

    def column(self, signal: str) -> list[float | None]:
        """A signal over all records, with None for what is missing."""
        return [row.get(signal) for row in self.rows]


Writer = Callable[[Ink, Moment], str]
"""Prints one moment: one line or more, each with its end."""
