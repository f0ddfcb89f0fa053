"""The resume audit: 8 wrong resumes are named, right ones raise nothing (`scripts/bench
resume_audit`).

A small model with dropout is trained, saved, stopped and resumed: AdamW or SGD with momentum, a
GradScaler, some runs under fp16 autocast, a StatefulDataLoader (shuffled or not) or a plain list,
from the last checkpoint or from an older one, with the guard's state in the checkpoint or only an
event in the journal.
"""

import logging
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

import torch
from tests.kit.resumes import RIGHT, STEPS_AFTER, WRONG, Outcome, is_named, resume

from benchmarks.results import publish

WRONG_SEEDS, RIGHT_SEEDS = range(10), range(10, 20)


def main() -> None:
    """Run every kind of resume at every seed."""
    torch.set_num_threads(1)
    logging.getLogger("trimtab").propagate = False
    wrong = {kind: [_resume(kind, seed) for seed in WRONG_SEEDS] for kind in WRONG}
    right = {kind: [_resume(kind, seed) for seed in RIGHT_SEEDS] for kind in RIGHT}
    named = [is_named(kind, one) for kind, outcomes in wrong.items() for one in outcomes]
    loud = [one for outcomes in right.values() for one in outcomes if one.named or one.incidents]
    total = sum(map(len, right.values()))
    headlines = [
        ("wrong resumes named for what was left out", f"{sum(named)} of {len(named)}", "all"),
        (f"of {total} right resumes, with a finding or an incident", len(loud), 0),
    ]
    publish("Resume audit", "scripts/bench resume_audit", _page(wrong, right), headlines)


def _resume(kind: str, seed: int) -> Outcome:
    with tempfile.TemporaryDirectory() as folder:
        outcome = resume(kind, seed, Path(folder))
    print(f"{kind}, seed {seed}: {', '.join(outcome.named) or 'nothing'}", file=sys.stderr)
    return outcome


def _page(wrong: dict[str, list[Outcome]], right_kinds: Iterable[str]) -> str:
    missed = [
        f"{kind} {len(outcomes) - right}"
        for kind, outcomes in wrong.items()
        if (right := sum(is_named(kind, outcome) for outcome in outcomes)) < len(outcomes)
    ]
    latest = max(_delay(one) for outcomes in wrong.values() for one in outcomes)
    return (
        "A wrong resume counts as named if what was left out is the first thing that the audit "
        f"names, in a log line within {STEPS_AFTER} steps, and an incident with it is open. Wrong: "
        f"{', '.join(wrong)}; {len(WRONG_SEEDS)} of each; not named: "
        f"{', '.join(missed) or 'none'}. "
        f"The latest is named after {latest} steps. Right: {', '.join(right_kinds)}; alarms about "
        "the speed of this machine are not counted."
    )


def _delay(outcome: Outcome) -> int:
    return STEPS_AFTER if outcome.named_at is None else outcome.named_at - outcome.first_step + 1


if __name__ == "__main__":
    main()
