"""scripts/bench trial.probes: what `recover.trial_every` finds under a loss's noise, and costs.

A person who accepts what is proposed is an arm of its own: the older state is restored at once.
"""

import argparse
import contextlib
import logging
import statistics
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import torch

from benchmarks.recover.worlds import World
from benchmarks.result_cache import ResultCache
from benchmarks.results import publish, table
from benchmarks.trial.__main__ import Measurement, nothing
from benchmarks.trial.changes import FAULTS
from benchmarks.trial.worlds import TRIAL_WORLDS
from trimtab.live.recover import trial

WORLDS = [world for world in TRIAL_WORLDS if world.name.startswith(("GRU", "convolutions"))]
STEPS, EARLIEST, EVERY = 560, 300, 25
FIRST_SEED = 9300
CASES = {
    "nothing": nothing,
    **{name: FAULTS[name] for name in ("gradient x1000 past the clip", "gradient negated for 20")},
    "half of the weights of step 50": FAULTS["half of the weights of step 50"],
}
TITLE = "Recover: probes"


@contextlib.contextmanager
def accepting(is_accepting: bool) -> Iterator[None]:
    """Let what is proposed be restored, if it is accepted."""
    patch = mock.patch.object(trial.StateTrial, "_why_ask", return_value=None)
    with patch if is_accepting else contextlib.nullcontext():
        yield


def outcome(
    cache: ResultCache, world: World, name: str, seed: int, every: int, *, is_accepting: bool
) -> dict[str, Any]:
    """Return the outcome of a run, with what was proposed or, if that is accepted, restored."""
    run = Measurement(
        world=world,
        name=name + " accepted" * is_accepting,
        change=CASES[name],
        seed=seed,
        arm="ask",
        steps=STEPS,
        earliest=EARLIEST,
        trial_every=every,
    )
    with accepting(is_accepting):
        return cache.get(run.key, run.outcome)


def main() -> None:
    """Measure in turns, and publish the section."""
    parser = argparse.ArgumentParser(prog="scripts/bench trial.probes")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--folder", help="where outcomes are kept, to go on later")
    given = parser.parse_args()
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as spare:
        cache = ResultCache(Path(given.folder or spare))
        seeds = range(FIRST_SEED, FIRST_SEED + given.seeds)
        found = {
            (world.name, name, seed, every, is_accepting): outcome(
                cache, world, name, seed, every, is_accepting=is_accepting
            )
            for seed in seeds
            for name in CASES
            for world in WORLDS
            for every, is_accepting in ((0, False), (EVERY, False), (EVERY, True))
            if name != "nothing" or not is_accepting
        }
    rows: list[list[object]] = []
    cost: list[list[object]] = []
    for world in WORLDS:

        def finals(name: str, every: int, is_accepting: bool, of: str = world.name) -> list[float]:
            return [found[of, name, seed, every, is_accepting]["final"] for seed in seeds]

        clean = finals("nothing", 0, False)
        for name in CASES:
            probed = [found[world.name, name, seed, EVERY, False] for seed in seeds]
            plain = [found[world.name, name, seed, 0, False] for seed in seeds]
            rises = [
                _rise(finals(name, EVERY, is_accepting), clean) if name != "nothing" else ""
                for is_accepting in (False, True)
            ]
            asked = ["; ".join(f"{gain:.2g} at {at}" for at, gain, _ in o["asked"]) for o in probed]
            by_loss = sum(bool(o["asked"]) for o in plain)
            number = sum(map(bool, asked))
            rows.append(
                [world.name, name, *rises, by_loss, number, " / ".join(a or "-" for a in asked)]
            )
        plain, probed = (
            [found[world.name, "nothing", seed, every, False] for seed in seeds]
            for every in (0, EVERY)
        )
        # Trials that the loss opens are made without probes, too.
        more = [b["scored"] - a["scored"] for a, b in zip(plain, probed, strict=True)]
        scored = statistics.fmean(more)
        shares = [
            count / o["scored"] * o["score_seconds"] / (o["seconds"] - o["score_seconds"])
            for count, o in zip(more, probed, strict=True)
        ]
        cost.append(
            [
                world.name,
                f"{scored:.0f} of at most {STEPS // EVERY}",
                f"{2 / 3 * scored:.1f}",
                f"{100 * statistics.median(shares):.1f} %",
                all(a["final"] == b["final"] for a, b in zip(plain, probed, strict=True)),
            ]
        )
    header = [
        *("run", "fault", "waits", "proposals accepted", "proposed without probes"),
        *("with probes", "gain in nat at step"),
    ]
    publish(
        TITLE,
        f"scripts/bench trial.probes --seeds {given.seeds}",
        f"`recover.trial_every = {EVERY}`, two runs of {STEPS} steps, {given.seeds} seeds from "
        f"{FIRST_SEED} on, onsets between step {EARLIEST} and {EARLIEST + 40}. Loss on held-out "
        "data minus that of the clean twin, in nat, mean of the seeds; runs of the seeds in which "
        "an older state was proposed, without and with probes.\n\n"
        f"{table(header, rows)}\n\n"
        "Cost in runs that nothing befalls: batches that were scored, steps that their forward "
        "passes amount to (a step taken as three), processor time of the scores beside the rest "
        "(median of the seeds; the machine was busy), and whether the final loss is the same "
        "number without probes.\n\n" + table(["run", "batches", "steps", "time", "same"], cost),
    )


def _rise(found: list[float], clean: list[float]) -> str:
    return f"{statistics.fmean(f - c for f, c in zip(found, clean, strict=True)):+.3f}"


if __name__ == "__main__":
    main()
