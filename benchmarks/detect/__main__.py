"""Runs every detector over the same material and publishes the scoreboard.

scripts/bench detect                     everything, into RESULTS.md; all others are printed
scripts/bench detect --only trimtab      some detectors or one split
scripts/bench detect cost                what judging costs
"""

import argparse
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tests.kit.public_runs import SPLITS, real_runs

from benchmarks.detect import cost
from benchmarks.detect.injections import (
    DRIFT,
    DRIFT_LOSS,
    LOSS_ONLY,
    POINTS,
    SHIFT,
    SHIFT_LOSS,
    SMALL,
    WITH_NORM,
)
from benchmarks.detect.intervals import share_of
from benchmarks.detect.measure import (
    CONFIDENCES,
    Contender,
    ForkResult,
    Result,
    event_recall,
    llama_early,
    measure,
    measure_faults,
    real_row,
)
from benchmarks.detect.ours import our_contenders
from benchmarks.detect.peers import PEERS
from benchmarks.results import Headline, publish, table

COMMAND = "scripts/bench detect"
BARS = "Detection: the bars"
HEADER = (
    *("detector", "false episodes, healthy runs: count; per 10,000 points [95 %]"),
    *("of these every-step LLM", "found, high", "found, medium", "chance"),
    *("delay, points: median / worst", "8B: before the peak"),
)


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


def main() -> None:
    """Read the command line and run."""
    parser = argparse.ArgumentParser(prog=COMMAND)
    choices = ("scoreboard", "cost")
    parser.add_argument("what", nargs="?", choices=choices, default="scoreboard")
    parser.add_argument("--only", default="", help="detectors whose name holds this")
    parser.add_argument("--split", choices=SPLITS, help="one split alone")
    parser.add_argument("--points", type=int, default=POINTS, help="injections of each kind")
    arguments = parser.parse_args()
    if arguments.what == "cost":
        cost.main()
        return
    entered: list[Contender] = [*our_contenders(), *PEERS]
    contenders = [item for item in entered if arguments.only.lower() in item.name.lower()]
    splits = [arguments.split] if arguments.split else list(SPLITS)
    results = scoreboard(contenders, splits, arguments.points)
    whole = contenders == entered and splits == list(SPLITS) and arguments.points == POINTS
    titled = sections(contenders, results)
    for title, body in titled.items():
        if whole:
            publish(title, COMMAND, body, headlines(results) if title == BARS else ())
        else:
            print(f"## {title}\n\n{body}\n")


def scoreboard(contenders: Sequence[Contender], splits: Sequence[str], points: int) -> list[Result]:
    """Every contender over every split; splits are never mixed."""
    everything, ours = list(real_runs()), our_contenders()[0]
    results = []
    for split in splits:
        runs = [run for run in everything if run.split == split]
        for contender in contenders:
            begin = time.process_time()
            result = measure(contender, split, runs)
            if contender.name == ours.name:
                result.forks.extend(measure_faults(ours, runs, points))
            results.append(result)
            print(f"{split}: {contender.name}, {time.process_time() - begin:.1f} s of CPU")
    return results


def headlines(results: Sequence[Result]) -> list[Headline]:
    """The first bars of the held-out runs, which are real ones, beside the best of the others."""
    held = [item for item in results if item.split == "held-out"]
    (own,) = [item for item in held if item.name == "trimtab"]
    others = [item for item in held if not item.name.startswith("trimtab")]
    return [
        (f"public runs, held-out: {bar.what}", bar.reached, bar.asked, best)
        for bar, best in zip(bars_of(own), _best(others), strict=False)
    ]


def _best(others: Sequence[Result]) -> Iterator[str]:
    """The best of the others at each of the first bars, with what it pays for it."""
    quiet = min(others, key=lambda item: (item.num_false, -event_recall(item, ("high",)).found))
    high = event_recall(quiet, ("high",))
    yield f"{quiet.num_false} ({quiet.name}, finds {high.found} of {high.total})"
    for confidence in CONFIDENCES:
        best = max(others, key=lambda item: event_recall(item, (confidence,)).found)
        recall = event_recall(best, (confidence,))
        yield f"{recall.found} of {recall.total} ({best.name}, {best.num_false:,} false episodes)"
    best = max(others, key=lambda item: llama_early(item)[0])
    early, total = llama_early(best)
    yield f"{early} of {total} ({best.name}, {best.num_false:,} false episodes)"


def sections(contenders: Sequence[Contender], results: Sequence[Result]) -> dict[str, str]:
    """The sections of RESULTS.md, by title."""
    held = [item for item in results if item.split == "held-out"]
    tune = [item for item in results if item.split == "tune" and item.name.startswith("trimtab")]
    own = [item for item in results if item.name == "trimtab"]
    by_source: dict[str, list[str]] = {}
    for one in contenders:
        by_source.setdefault(one.source, []).append(one.name)
    sources = "; ".join(f"{source}: {', '.join(names)}" for source, names in by_source.items())
    real = [
        "Alarms on the public runs; strict scoring (`benchmarks/scoring.py`). A loss that turns "
        "non-finite counts as an alarm of everyone. Delays count logged points from the labelled "
        "start (negative: before it). Chance is the share of windows as long as the events' own, "
        "laid where nothing happened, that hold a new alarm. 8B: the every-step Llama-3.1-8B runs. "
        f"By whose code each ran: {sources}.",
        *(
            f"### {title}\n\n"
            + table(HEADER, [real_row(one) for one in sorted(items, key=lambda one: one.num_false)])
            for title, items in (("held-out", held), ("tune", tune))
            if items
        ),
    ]
    titled = {"Detection on the real runs": "\n\n".join(real)}
    if own:
        said = "; ".join(f"{item.split}: {_false_episodes(item)}" for item in own)
        titled[BARS] = (
            f"{bar_table(own)}\n\nThe faults are injected at {POINTS} random rows of healthy, "
            "every-step pretraining runs (`benchmarks/detect/injections.py`). False episodes on "
            f"healthy runs, {said}."
        )
    return titled


def _false_episodes(result: Result) -> str:
    """The false episodes on healthy runs, by run and step."""
    episodes = [
        f"{item.run.name} at {int(item.run.block.step[first]):,}"
        for item in result.healthy
        for first, _ in item.score.false
    ]
    return ", ".join(episodes) or "none"


if __name__ == "__main__":
    main()
