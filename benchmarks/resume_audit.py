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
import time
from collections.abc import Callable
from pathlib import Path

import torch
from tests.kit.resumes import RIGHT, STEPS_AFTER, WRONG, Outcome, Script, Setup, is_named, resume

from benchmarks.results import publish, table
from trimtab.live.measure.state_facts import random_facts, state_facts

WRONG_SEEDS, RIGHT_SEEDS = range(10), range(10, 20)


def main() -> None:
    """Run every kind of resume at every seed."""
    torch.set_num_threads(1)
    logging.getLogger("trimtab").propagate = False
    wrong = {kind: [_resume(kind, seed) for seed in WRONG_SEEDS] for kind in WRONG}
    right = {kind: [_resume(kind, seed) for seed in RIGHT_SEEDS] for kind in RIGHT}
    publish("Resume audit", "scripts/bench resume_audit", _page(wrong, right))


def _resume(kind: str, seed: int) -> Outcome:
    with tempfile.TemporaryDirectory() as folder:
        outcome = resume(kind, seed, Path(folder))
    print(f"{kind}, seed {seed}: {', '.join(outcome.named) or 'nothing'}", file=sys.stderr)
    return outcome


def _page(wrong: dict[str, list[Outcome]], right: dict[str, list[Outcome]]) -> str:
    named = [
        (
            kind,
            f"{sum(is_named(kind, outcome) for outcome in outcomes)} of {len(outcomes)}",
            f"{len(outcomes)} of {len(outcomes)}",
            max(_delay(outcome) for outcome in outcomes),
            sum(len(set(outcome.named)) - 1 for outcome in outcomes if outcome.named),
        )
        for kind, outcomes in wrong.items()
    ]
    quiet = [
        (
            kind,
            len(outcomes),
            sum(bool(outcome.named) for outcome in outcomes),
            sum(bool(outcome.incidents) for outcome in outcomes),
            0,
        )
        for kind, outcomes in right.items()
    ]
    count = sum(len(outcomes) for outcomes in right.values())
    return "\n\n".join(
        (
            "A wrong resume counts as named if what was left out is the first thing that the audit "
            f"names, in a log line within {STEPS_AFTER} steps, and an incident with it is open. "
            "Steps until named are those that were begun when the line was written. Further things "
            "are consequences: an optimizer whose state was never loaded has lost its moments, its "
            "step and its learning rate.",
            table(
                ("wrong resume", "named first", "bar", "steps until named, most", "further things"),
                named,
            ),
            f"{count} right resumes; the bar is nothing in all of them. Alarms about the speed of "
            "this machine are not counted.",
            table(("right resume", "runs", "audit findings", "incidents", "bar"), quiet),
            _cost(),
        )
    )


def _delay(outcome: Outcome) -> int:
    return STEPS_AFTER if outcome.named_at is None else outcome.named_at - outcome.first_step + 1


def _cost() -> str:
    """What one look costs: never on the path of a step."""
    script = Script(Setup.of(0, ""))
    parameters = list(script.model.parameters())
    for parameter in parameters:
        parameter.grad = torch.ones_like(parameter)
    script.optimizer.step()
    rows = [
        ("checksum of three generators", _microseconds(random_facts)),
        (
            f"facts of {len(parameters)} small parameters and their moments",
            _microseconds(lambda: state_facts([script.optimizer]).read()),
        ),
    ]
    return "Best of 200, once per process and once per saved state:\n\n" + table(
        ("what", "microseconds"), rows
    )


def _microseconds(call: Callable[[], object]) -> str:
    best = float("inf")
    for _ in range(200):
        started = time.perf_counter()
        call()
        best = min(best, time.perf_counter() - started)
    return f"{1e6 * best:.0f}"


if __name__ == "__main__":
    main()
