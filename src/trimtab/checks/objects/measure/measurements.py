"""Measurements: what rules may ask for, by name. Each is made once; the objects are restored."""

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from torch import nn

from trimtab.checks.objects.inputs import Inputs
from trimtab.checks.objects.measure import loader as loaders
from trimtab.checks.objects.measure import passes, training
from trimtab.checks.objects.measure.kept_state import KeptState
from trimtab.checks.objects.measure.loader import cut
from trimtab.checks.objects.measure.ranks import exchange
from trimtab.checks.objects.measure.training import Simulation, simulate_schedule
from trimtab.checks.rule import NotMeasured

PASS_ROWS, PASS_ELEMENTS = 4, 512
"""Rows and tokens of a pass: four micro-batches. With these numbers the passes and steps of a 50M
model take under 2 minutes on 2 cores (benchmarks/RESULTS.md, "Check of objects: time")."""

OVERFIT_ROWS, OVERFIT_ELEMENTS = 2, 128
"""Rows and tokens of the batch that is trained on repeatedly: few enough that a step of
AdamW costs as much as the passes."""

MIN_FALL = 0.1
"""Share of the first loss that 30 steps on one batch must take away; else 10 times the rate is
tried. Source: benchmarks/RESULTS.md, "Check of objects": the least of 13 healthy architectures
is 38 %."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstAttempt:
    """Whether a step runs at all."""

    result: passes.BatchPass | None
    error: str
    failed_ranks: tuple[int, ...]
    """Ranks without a finite loss, this one included."""


def measured(method: Callable[["Measurements"], T]) -> property:
    """Make a property of a measurement: made once, failures kept, the user's objects restored."""
    name = method.__name__

    @functools.wraps(method)
    def read(self: "Measurements") -> T:
        if name not in self._made:
            try:
                self._made[name] = (method(self), None)
            except Exception as error:  # the user's code, or objects that we do not understand
                self._made[name] = (None, error)
            finally:
                self._kept.restore()
        value, failure = self._made[name]
        if failure is not None:
            raise failure
        return value  # type: ignore[no-any-return]

    return property(read)


class Measurements:
    """What is measured about the objects of a run."""

    def __init__(self, inputs: Inputs, kept: KeptState) -> None:
        self.inputs = inputs
        self._kept = kept
        self._made: dict[str, tuple[Any, Exception | None]] = {}

    @property
    def model(self) -> nn.Module:
        return self.inputs.model

    @measured
    def batches(self) -> list[Any]:
        return loaders.draw(self.inputs.loader)

    @property
    def batch(self) -> Any:
        """The first batch, cut to what can be afforded."""
        return cut(self.batches[0], PASS_ROWS, PASS_ELEMENTS)

    @measured
    def attempt(self) -> FirstAttempt:
        """The first forward and backward pass, with its error if it raised one."""
        batch = self.batch
        result: passes.BatchPass | None = None
        text = ""
        try:
            result = passes.run_pass(self.inputs, batch)
        except Exception as error:
            text = f"{type(error).__name__}: {error}"
        is_good = exchange("the first step", result is not None and math.isfinite(result.loss))
        failed = tuple(rank for rank, good in enumerate(is_good) if not good)
        return FirstAttempt(result=result, error=text, failed_ranks=failed)

    @property
    def first_pass(self) -> passes.BatchPass:
        """A forward and backward pass of the first batch."""
        attempt = self.attempt
        if attempt.result is None:
            raise NotMeasured("the first step raised an error")
        found: passes.BatchPass = attempt.result
        if not math.isfinite(found.loss):
            raise NotMeasured("the first loss is not finite")
        if attempt.failed_ranks:
            raise NotMeasured(f"the first step failed on rank {attempt.failed_ranks[0]}")
        return found

    @property
    def fresh_pass(self) -> passes.BatchPass:
        """The same, of weights as an init makes them."""
        if self.inputs.pretrained:
            raise NotMeasured("the weights are pretrained")
        return self.first_pass

    @measured
    def eval_pass(self) -> passes.EvalPass:
        """A forward pass of the first batch without dropout, shared by what compares with it."""
        self.first_pass  # noqa: B018
        return passes.run_eval(self.inputs, self.batch)

    @measured
    def split(self) -> passes.Split:
        return passes.split_loss(self.inputs, self.batch, self.eval_pass[0])

    @measured
    def label_shift(self) -> passes.LabelShift:
        return passes.label_shift(self.first_pass.trace)

    @measured
    def future_leak(self) -> float:
        """How much a past logit changes with a future token."""
        if self.label_shift.places < 1:
            raise NotMeasured("the targets are not later tokens")
        tokens = self.label_shift.tokens
        return passes.future_leak(self.inputs, self.batch, tokens, self.eval_pass)

    @measured
    def packed_leak(self) -> float:
        """How much the logits of a packed text change with the text before it."""
        return passes.packed_leak(self.inputs, self.batch, self.eval_pass)

    @measured
    def simulation(self) -> Simulation:
        return simulate_schedule(self.inputs)

    @property
    def peak_rates(self) -> list[list[float]]:
        """The highest learning rate of each group of each optimizer."""
        try:
            found: list[list[float]] = self.simulation.peaks(self.inputs)
            return found
        except Exception:  # whatever a scheduler raises: its own check reports it
            return [
                [float(g.get("initial_lr", g.get("lr", math.nan))) for g in o.param_groups]
                for o in self.inputs.optimizers
            ]

    @measured
    def short_run(self) -> training.ShortRun:
        self.first_pass  # noqa: B018
        batches = [cut(batch, PASS_ROWS, PASS_ELEMENTS) for batch in self.batches]
        return training.short_run(self.inputs, batches, self.peak_rates)

    @measured
    def overfit(self) -> training.Overfit:
        """Repeated training on one batch; at 10 times the rate if the loss hardly falls."""
        self.first_pass  # noqa: B018
        batch = cut(self.batches[0], OVERFIT_ROWS, OVERFIT_ELEMENTS)
        rates = self.peak_rates
        found = training.overfit(self.inputs, batch, rates, 1.0)
        is_done = found.fall >= MIN_FALL or math.isnan(found.fall)
        if all(exchange("one batch", is_done)):
            return found
        self._kept.restore()
        higher = training.overfit(self.inputs, batch, rates, 10.0)
        return higher if not is_done and higher.fall >= MIN_FALL else found

    @measured
    def next_epoch(self) -> loaders.NextEpoch:
        self.batches  # noqa: B018
        return loaders.next_epoch(self.inputs)

    @measured
    def round_trip(self) -> tuple[list[int], list[int]]:
        """Batches after a save, and after the state is loaded."""
        self.batches  # noqa: B018
        return loaders.round_trip(self.inputs, self._kept.loader.has_state)

    @measured
    def ranks(self) -> loaders.RankBatches:
        try:
            first = self.first_pass
            calls = first.trace.losses
            count = passes.main_loss(first.trace).num_targets if calls else None
            facts = (self.batches, first.loss, count)
        except Exception:  # this rank must join the exchange all the same
            facts = None
        return loaders.gather_ranks(facts)
