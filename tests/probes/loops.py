"""A user's loop whose steps may be done again for experiments."""

import random
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from tests.kit.recovering import AnyGuard, train_step
from tests.kit.runs import Run, same_run
from tests.kit.tiny import journal_of

import trimtab
from trimtab.core.block import Event
from trimtab.core.config import Config
from trimtab.core.events import PROBE_ANSWER


def drive(
    run: Run,
    folder: Path,
    until: int,
    *,
    probes: dict[int, tuple[str, int]] | None = None,
    settings: dict[str, Any] | None = None,
    clip: float | None = None,
    on_step: Callable[[AnyGuard, Any], None] = lambda guard, step: None,
) -> int:
    """Train to a step; `probes` maps steps to experiments and how many steps back they look.

    Returns how many steps were done for experiments.
    """
    probed = 0
    with trimtab.watch(
        run.model,
        run.optimizers,
        run_dir=folder,
        mode="recover",
        config=Config().override({"ladder.enabled": False, **(settings or {})}),
        state={**(run.state or {}), "scheduler": run.schedulers, "scaler": run.scaler},
    ) as guard:
        while True:  # one turn is an epoch
            for step in guard.steps(run.loader, run.accumulate):
                if step.number >= until:
                    return probed
                before = run.losses.get(step.number, 0.0)
                on_step(guard, step)
                train_step(run, guard, step.number, step, clip)
                if step.is_probe:
                    probed += 1
                    run.losses[step.number] = before  # the loop's own notes are not put back
                elif probes and step.number in probes:
                    name, ago = probes[step.number]
                    guard.probe(name, step.number - ago)


def random_probes(
    names: Iterable[str], count: int, first: int, last: int, seed: int = 0
) -> dict[int, tuple[str, int]]:
    """Experiments at random steps, each about a step 3 to 12 steps ago."""
    dice = random.Random(seed)
    steps = dice.sample(range(first, last), count)
    known = sorted(names)
    return {step: (dice.choice(known), dice.randint(3, 12)) for step in steps}


def assert_unchanged(
    make_run: Callable[[], Run],
    folder: Path,
    probes: dict[int, tuple[str, int]],
    *,
    until: int,
    **options: Any,
) -> list[Event]:
    """A probed run ends like one that never was, to the last bit; returns the answers."""
    straight = make_run()
    assert drive(straight, folder / "straight", until, **options) == 0
    numbers = torch.get_rng_state()
    probed = make_run()
    assert drive(probed, folder / "probed", until, probes=probes, **options) > 0
    same_run(straight, probed)
    assert torch.equal(numbers, torch.get_rng_state())
    assert same_journal(folder / "straight", folder / "probed")
    return answers_of(folder / "probed")


def answers_of(folder: Path) -> list[Event]:
    """The answers that the journal has."""
    return [event for event in journal_of(folder).events if event.kind == PROBE_ANSWER]


def same_journal(one: Path, other: Path) -> bool:
    """Whether two runs have the same records, apart from their clocks."""
    first, second = journal_of(one), journal_of(other)
    timed = {"clock", "step_seconds", "tokens_per_second", "data_seconds"}
    names = set(first.columns) - timed
    return (
        list(first.step) == list(second.step)
        and list(first.attempt) == list(second.attempt)
        and list(first.data_position) == list(second.data_position)
        and names == set(second.columns) - timed
        and all(
            torch.equal(
                torch.from_numpy(first.columns[name].values.copy()).nan_to_num(-1.0),
                torch.from_numpy(second.columns[name].values.copy()).nan_to_num(-1.0),
            )
            for name in names
        )
    )
