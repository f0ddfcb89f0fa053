"""Figures as Markdown."""

from collections.abc import Sequence

from benchmarks.detect.contenders import Contender
from benchmarks.detect.dominance import weaknesses
from benchmarks.detect.figures import (
    Recall,
    event_recall,
    every_step_llm,
    false_rate,
    fault_recall,
    llama_early,
)
from benchmarks.detect.injections import SHAPES
from benchmarks.detect.measure import Result
from benchmarks.results import table


def sources(contenders: Sequence[Contender]) -> str:
    """By whose code each of them ran, in a sentence."""
    names: dict[str, list[str]] = {}
    for item in contenders:
        names.setdefault(item.source, []).append(item.name)
    return "; ".join(f"{source}: {', '.join(some)}" for source, some in names.items())


def false_episodes(result: Result) -> str:
    """The false episodes on healthy runs, by run and step."""
    places = [
        f"{item.run.name} at {int(item.run.block.step[first]):,}"
        for item in result.healthy
        for first, _ in item.score.false
    ]
    return ", ".join(places) or "none"


def real_table(results: Sequence[Result]) -> str:
    """One row per contender: the real runs of one split."""
    header = (
        "detector",
        "false episodes, healthy runs: count; per 10,000 points [95 %]",
        "of these every-step LLM",
        "found, high",
        "found, medium",
        "chance",
        "delay, points: median / worst",
        "8B: before the peak",
    )
    return table(header, [_real_row(result) for result in _by_noise(results)])


def fault_table(results: Sequence[Result], variants: Sequence[str]) -> str:
    """One row per contender: the injected faults, in all variants."""
    kinds = [shape.kind for shape in SHAPES]
    rows = [
        (
            result.name,
            *(
                "; ".join(fault_cell(fault_recall(result, kind, variant)) for variant in variants)
                for kind in kinds
            ),
        )
        for result in _by_noise(results)
    ]
    return table(("detector", *kinds), rows)


def fault_cell(recall: Recall) -> str:
    return f"{100 * recall.share:.0f} ({100 * recall.chance:.0f})" if recall.total else "-"


def dominance_table(ours: Result, peers: Sequence[Result]) -> str:
    """One row per peer that beats us somewhere, or is not beaten clearly enough."""
    rows = []
    for peer in _by_noise(peers):
        weak = [str(item) for item in weaknesses(ours, peer) if not item.is_chance]
        if weak:
            rows.append((peer.name, f"{peer.num_false:,}", "; ".join(weak)))
    return table(("other tool", "false episodes", "ours against its, %"), rows)


def _by_noise(results: Sequence[Result]) -> list[Result]:
    return sorted(results, key=lambda result: result.num_false)


def _real_row(result: Result) -> tuple[str, ...]:
    both = event_recall(result)
    early, spikes = llama_early(result)
    return (
        result.name,
        false_rate(result.healthy),
        false_rate(every_step_llm(result.healthy)),
        *(_found(event_recall(result, (confidence,))) for confidence in ("high", "medium")),
        f"{100 * both.chance:.0f} %",
        both.delay,
        f"{early} of {spikes}",
    )


def _found(recall: Recall) -> str:
    return f"{recall.found} of {recall.total} ({100 * recall.share:.0f} %)"
