"""scripts/bench trial: what the trial of states restores, proposes and leaves alone.

Each fault is trained in three arms with the same weights and data: clean, `recover` that waits
(`recover.rollback = "off"`), and `recover` that restores (`"auto"`). Purposeful changes are trained
with `"auto"` alone: what counts is what it does.
"""

import argparse
import functools
import logging
import math
import statistics
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

import trimtab
from benchmarks.recover.phases import Phase
from benchmarks.recover.worlds import Data, Run, World
from benchmarks.result_cache import ResultCache
from benchmarks.results import publish, table
from benchmarks.trial.changes import FAULTS, PURPOSES
from benchmarks.trial.worlds import TRIAL_WORLDS
from trimtab.core.errors import TrimtabError
from trimtab.core.events import ROLLBACK_PROPOSED, TRIAL, UNDO
from trimtab.journal import RunDirectory, read_journal

STEPS, WARMUP, EARLIEST = 280, 20, 140
FIRST_SEED = 9100
LONG, USUAL = 560, "LR x100 for 5"
"""The lost updates of a rollback cost less in a longer run; one fault is trained in one as well."""
TITLE = "Recover: trial of states"
WORSE = 0.01
"""By how much an act must end above waiting to count as harm, in nat."""


def train(world: World, change: Phase, seed: int, rollback: str, folder: str, steps: int) -> float:
    """Train one run; returns its loss on data that it has not seen."""
    torch.manual_seed(seed)
    run = Run(world, model := world.model(), world.optimizer(model.parameters()))
    run.memory["onset"] = EARLIEST + 7 * seed % 40
    stream = torch.Generator().manual_seed(seed)
    run.memory["rate"] = run.optimizer.param_groups[0]["lr"]
    plan = torch.optim.lr_scheduler.LambdaLR(run.optimizer, functools.partial(_planned, steps))
    with trimtab.watch(
        model,
        run.optimizer,
        run_dir=folder,
        mode="recover",
        batch_loss=run.batch_loss,
        observer=False,
        config=trimtab.Config().override({"recover.rollback": rollback}),
    ) as guard:
        for step in range(steps):
            run.memory.pop("lr", None)  # changes multiply the rate of the plan
            change(run, step)
            accumulate = run.memory.get("accumulate", 1)
            for _ in range(accumulate):
                batch = world.draw(run.data, stream)
                loss = run.batch_loss(batch) * run.memory.get("sign", 1.0)
                if weight := run.memory.get("term"):
                    loss = loss + weight * sum(p.square().mean() for p in model.parameters())
                guard.record(loss=loss, batch=batch)
                (loss / accumulate).backward()
            guard.clip_grad_norm_(1.0)
            _change_gradients(run)
            run.optimizer.step()
            run.optimizer.zero_grad()
            plan.step()
    dice = torch.Generator().manual_seed(1)
    model.eval()
    with torch.no_grad():
        losses = [float(world.loss(model, world.draw(Data(), dice))) for _ in range(64)]
    return statistics.fmean(losses)


def _planned(steps: int, step: int) -> float:
    if step < WARMUP:
        return (step + 1) / WARMUP
    return 0.1 + 0.45 * (1 + math.cos(math.pi * (step - WARMUP) / (steps - WARMUP)))


def _change_gradients(run: Run) -> None:
    factor, noise = run.memory.get("gradient factor", 1.0), run.memory.get("noise", 0.0)
    for parameter in run.model.parameters():
        if parameter.grad is not None and factor != 1.0:
            parameter.grad.mul_(factor)
        if parameter.grad is not None and noise:
            parameter.grad.add_(noise * torch.randn_like(parameter))


def measure(world: World, change: Phase, seed: int, rollback: str, steps: int) -> dict[str, Any]:
    """Train one run, and read in its journal what was done."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            final = train(world, change, seed, rollback, folder, steps)
        except TrimtabError as error:
            final = math.nan
            print(type(error).__name__, error)
        events = read_journal(RunDirectory(Path(folder))).block.events
    return {
        "final": final,
        "acts": [
            [e.step, e.facts["updates_lost"], e.facts["gain"]]
            for e in events
            if e.kind == UNDO and "gain" in e.facts
        ],
        "proofs": [
            [e.step, e.facts["why"]] for e in events if e.kind == UNDO and "gain" not in e.facts
        ],
        "asked": [
            [e.step, e.facts["gain"], e.facts["because"]]
            for e in events
            if e.kind == ROLLBACK_PROPOSED
        ],
        "closed": [[e.step, e.facts["outcome"]] for e in events if e.kind == TRIAL],
        "failed": [str(e.facts)[-300:] for e in events if e.kind == "trimtab failed"],
    }


def nothing(run: Run, step: int) -> None:
    """A run that nothing befalls."""


def main() -> None:
    """Train every run that is not in the folder yet, and publish the section."""
    parser = argparse.ArgumentParser(prog="scripts/bench trial")
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--folder", help="where outcomes are kept, to go on later")
    parser.add_argument("--only", nargs="*", default=[], help="some of the changes")
    parser.add_argument("--worlds", nargs="*", default=[], help="beginnings of their names")
    given = parser.parse_args()
    logging.getLogger("trimtab").setLevel(logging.CRITICAL)
    torch.set_num_threads(1)
    worlds = [w for w in TRIAL_WORLDS if not given.worlds or w.name.startswith(tuple(given.worlds))]
    with tempfile.TemporaryDirectory() as spare:
        cache = ResultCache(Path(given.folder or spare))
        publish_trial(cache, worlds, given.seeds, given.only)


def publish_trial(
    cache: ResultCache, worlds: Sequence[World], num_seeds: int, only: Sequence[str]
) -> None:
    """Measure, and write the section."""
    seeds = range(FIRST_SEED, FIRST_SEED + num_seeds)

    def outcomes(
        world: World, name: str, change: Phase, arm: str, steps: int = STEPS
    ) -> list[dict[str, Any]]:
        more = "" if steps == STEPS else f"{steps} "
        return [
            cache.get(
                f"{world.name} {name} {more}{seed} {arm}",
                functools.partial(measure, world, change, seed, arm, steps),
            )
            for seed in seeds
        ]

    rows: list[list[object]] = []
    harms: list[float] = []
    hundred: list[float] = []
    longer: list[list[object]] = []
    num_acts = num_asked = 0
    healthy = [o for w in worlds for o in outcomes(w, "nothing", nothing, "auto")]
    for name, change in FAULTS.items():
        if only and name not in only:
            continue
        row: list[object] = [name]
        for world in worlds:
            clean = outcomes(world, "nothing", nothing, "off")
            waits = outcomes(world, name, change, "off")
            acts = outcomes(world, name, change, "auto")
            num_acts += sum(bool(o["acts"]) for o in acts)
            harms += [
                a["final"] - w["final"] for a, w in zip(acts, waits, strict=True) if a["acts"]
            ]
            rise = [_mean_rise(found, clean) for found in (waits, acts)]
            row += [f"{rise[0]:+.3f}", f"{rise[1]:+.3f}", _counts(acts)]
        rows.append(row)
    quick = [world for world in worlds if not world.name.startswith("byte")]
    for world in quick if not only or USUAL in only else ():
        arms = {arm: outcomes(world, USUAL, FAULTS[USUAL], arm, LONG) for arm in ("off", "auto")}
        clean = outcomes(world, "nothing", nothing, "off", LONG)
        rises = [_mean_rise(found, clean) for found in arms.values()]
        hundred.append(rises[1])
        longer.append([world.name, *(f"{rise:+.3f}" for rise in rises), _counts(arms["auto"])])
    nearest: list[list[object]] = []
    wrong: list[str] = []
    num_purposes = 0
    for name, change in PURPOSES.items():
        if only and name not in only:
            continue
        cells: list[object] = [name]
        for world in worlds:
            found = outcomes(world, name, change, "auto")
            num_purposes += len(found)
            wrong += [f"{name} ({world.name})" for o in found if o["acts"]]
            num_asked += sum(bool(o["asked"]) for o in found)
            cells.append(_counts(found))
        if any(cell != "-" for cell in cells[1:]):
            nearest.append(cells)
    worse = sum(harm > WORSE for harm in harms)
    opened = sum(len(o["closed"]) + len(o["asked"]) + len(o["acts"]) for o in healthy)
    header = ["fault", *(f"{w.name}: {part}" for w in worlds for part in ("waits", "auto", "did"))]
    body = (
        f"{len(worlds)} runs of {STEPS} steps, {num_seeds} seeds from {FIRST_SEED} on, on none of "
        "which a threshold was chosen. Loss on held-out data minus that of the clean twin, in "
        "nat, mean of the seeds. Did: runs of the seeds in which the older state was restored "
        "(r), proposed (p), or won no trial (c: present better, u: unclear, o: other loss, g: not "
        f"finished).\n\n{table(header, rows)}\n\n"
        f"{USUAL} in runs of {LONG} steps, for the two that are quick:\n\n"
        f"{table(['run', 'waits', 'auto', 'did'], longer)}\n\n"
        f"On purpose, where a trial was opened at all: restored unasked in {len(wrong)} of "
        f"{num_purposes} runs ({', '.join(wrong) or 'none'}), proposed in {num_asked}.\n\n"
        f"{table(['change', *(w.name for w in worlds)], nearest)}\n\n"
        f"Healthy: {opened} trials in {len(healthy) * STEPS:,} steps."
    )
    publish(
        TITLE,
        f"scripts/bench trial --seeds {num_seeds}"
        + "".join(f' "{name}"' for name in ("--only", *only) if only).replace('"--only"', "--only"),
        body,
        [
            (f"purposeful changes rolled back, of {num_purposes} runs", len(wrong), "0"),
            (f"rollbacks over {WORSE} nat worse than waiting", f"{worse} of {num_acts}", "2 %"),
            (
                f"learning rate x100 for five steps in {LONG} steps, above clean at most",
                f"{max(hundred, default=math.nan):+.3f}",
                "0.02",
            ),
        ],
    )


def _mean_rise(found: Sequence[dict[str, Any]], clean: Sequence[dict[str, Any]]) -> float:
    return statistics.fmean(f["final"] - c["final"] for f, c in zip(found, clean, strict=True))


def _counts(found: Sequence[dict[str, Any]]) -> str:
    """Return what was done in how many runs: "2r 1p 3c"."""
    done = {
        "r": sum(bool(o["acts"]) for o in found),
        "p": sum(bool(o["asked"]) for o in found),
        **{
            letter: sum(any(word in how for _, how in o["closed"]) for o in found)
            for letter, word in (
                ("c", "present state"),
                ("u", "within the noise"),
                ("o", "batch_loss"),
                ("g", "no old snapshot"),
            )
        },
    }
    return " ".join(f"{count}{letter}" for letter, count in done.items() if count) or "-"


if __name__ == "__main__":
    main()
