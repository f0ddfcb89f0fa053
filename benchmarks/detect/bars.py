"""What trimtab asks of itself on public runs and injected faults, beside what it reaches."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from benchmarks.detect.injections import (
    DRIFT,
    DRIFT_LOSS,
    LOSS_ONLY,
    SHIFT,
    SHIFT_LOSS,
    SMALL,
    WITH_NORM,
)
from benchmarks.detect.intervals import share_of
from benchmarks.detect.measure import ForkResult, Result, event_recall, llama_early
from benchmarks.results import table

MOST_FALSE = 2
SPIKES = ("BLOOM spike", "second spike", "spike after NaN")

WARN_STEPS, ALARM_STEPS = 60, 180
"""A level that rose is a warning within 60 steps, and an alarm once it has lasted for 96 more; the
rest is the grid of both tests (docs/detection.md)."""
RISE_STEPS = round(SHIFT_LOSS / DRIFT_LOSS)
"""A drift has risen as far as the shift after 250 steps: from then on the same is asked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """One figure and what it should be."""

    what: str
    reached: str
    asked: str
    is_met: bool


def bar_table(results: Sequence[Result]) -> str:
    """Every bar on a line, with what each split reached."""
    rows = [
        (
            bars[0].what,
            *(bar.reached if bar.is_met else f"{bar.reached}: NO" for bar in bars),
            bars[0].asked,
        )
        for bars in zip(*(list(bars_of(result)) for result in results), strict=True)
    ]
    return table(("what", *(result.split for result in results), "bar"), rows)


def bars_of(result: Result) -> Iterator[Bar]:
    """The bars of one split."""
    yield Bar(
        what="false episodes on healthy runs",
        reached=f"{result.num_false} in {result.num_healthy_points:,} points",
        asked=f"at most {MOST_FALSE}",
        is_met=result.num_false <= MOST_FALSE,
    )
    for confidence, share in (("high", 0.97), ("medium", 0.80)):
        recall = event_recall(result, (confidence,))
        yield _share(f"{confidence}-confidence events found", recall.found, recall.total, share)
    early, spikes = llama_early(result)
    yield _share("Llama-3.1-8B: alarm before the peak", early, spikes, 0.90)
    for kind in SPIKES:
        forks = _faults(result, kind)
        soon = within([fork.delay for fork in forks], 1)
        yield _share(f"{kind}, with norm: at most 1 step after it began", soon, len(forks), 1.0)
    forks = _faults(result, SPIKES[0], LOSS_ONLY)
    before = sum(fork.is_early for fork in forks)
    yield _share(f"{SPIKES[0]}, loss only: before the peak", before, len(forks), 0.90)
    forks = _faults(result, SMALL)
    found = sum(fork.delay is not None for fork in forks)
    yield _share(f"{SMALL}, with norm: found", found, len(forks), 0.95)
    for kind, rise, share in ((SHIFT, 0, 0.95), (DRIFT, RISE_STEPS, 0.90)):
        forks = _faults(result, kind)
        for what, delays, steps in (
            ("warning", [fork.warned for fork in forks], rise + WARN_STEPS),
            ("alarm", [fork.delay for fork in forks], rise + ALARM_STEPS),
        ):
            said = f"{kind}, with norm: {what} within {steps} steps"
            yield _share(said, within(delays, steps), len(forks), share)


def _faults(result: Result, kind: str, variant: str = WITH_NORM) -> list[ForkResult]:
    return [fork for fork in result.forks if fork.kind == kind and fork.variant == variant]


def within(delays: Sequence[int | None], steps: int) -> int:
    return sum(delay is not None and delay <= steps for delay in delays)


def _share(what: str, count: int, total: int, asked: float) -> Bar:
    share = count / total if total else 0.0
    return Bar(
        what=what,
        reached=share_of(count, total),
        asked=f"{100 * asked:.0f} %",
        is_met=round(share, 2) >= asked,
    )
