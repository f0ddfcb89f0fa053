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


def contender_table(contenders: Sequence[Contender]) -> str:
    """By whose code each of them ran."""
    return table(("detector", "ran by"), [(item.name, item.source) for item in contenders])


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


def fault_table(results: Sequence[Result], variant: str) -> str:
    """One row per contender: the injected faults of one split and variant."""
    kinds = [shape.kind for shape in SHAPES]
    rows = [
        (result.name, *(fault_cell(fault_recall(result, kind, variant)) for kind in kinds))
        for result in _by_noise(results)
    ]
    return table(("detector", *kinds), rows)


def fault_cell(recall: Recall) -> str:
    """Recall (chance), delay, share before the peak."""
    if not recall.total:
        return "-"
    text = f"{100 * recall.share:.0f} % ({100 * recall.chance:.0f})"
    if recall.delays:
        text += f"; {recall.delay}"
    if recall.num_early is not None and recall.delays:
        text += f"; {100 * recall.num_early / recall.total:.0f} % early"
    return text


def dominance_table(ours: Result, peers: Sequence[Result]) -> str:
    """One row per peer: where it beats us, or is not beaten clearly enough."""
    rows = []
    for peer in _by_noise(peers):
        weak = weaknesses(ours, peer)
        chance = sum(weakness.is_chance for weakness in weak)
        rows.append(
            (
                ours.split,
                peer.name,
                "more" if peer.num_false > ours.num_false else "as few",
                len(weak),
                chance,
                "; ".join(str(weakness) for weakness in weak if not weakness.is_chance) or "-",
            )
        )
    header = ("split", "peer", "false alarms", "rows", "by its chance", "the other rows: ours, its")
    return table(header, rows)


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
