"""What a detector must offer to enter: alarms per logged point, from the past alone."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from trimtab.core.block import Block, BoolArray, FloatArray
from trimtab.core.signals import GRAD_NORM, LOSS


class Contender(Protocol):
    """A detector on the scoreboard."""

    @property
    def name(self) -> str:
        """What the table calls it."""

    @property
    def source(self) -> str:
        """By whose code it ran: a package with its version, or a rule written from its facts."""

    def watch(self, run: Block) -> BoolArray:
        """Say at which rows it raises an alarm."""


Rule = Callable[[FloatArray, FloatArray | None], BoolArray]
"""Losses and norms (none if the run has no norms) in, one flag per value out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ArrayRule:
    """A rule over the losses and norms of the records that have a loss."""

    name: str
    rule: Rule
    source: str = "rule"

    def watch(self, run: Block) -> BoolArray:
        loss, norm = run.column(LOSS), run.column(GRAD_NORM)
        rows = np.flatnonzero(loss.present)
        flags = np.zeros(len(run), dtype=np.bool_)
        with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
            norms = norm.values[rows] if norm.recorded else None
            flags[rows] = self.rule(loss.values[rows], norms)
        return flags
