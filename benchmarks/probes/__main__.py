"""Experiments in the lab: `scripts/bench probes FOLDER [--seeds 181,182] [--kinds F02,F12]`.

Outcomes are kept in FOLDER, one per run: a measurement can be continued. With `--minutes N` no run
begins later, and what is there is published. About 50 minutes of one core in all.
"""

import argparse
import logging
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks.probes import figures
from benchmarks.probes.places import PLACES, planted
from benchmarks.probes.runs import CLEAN_RANKS, measure
from benchmarks.result_cache import ResultCache
from benchmarks.results import publish
from trimtab.lab.scenarios.catalogue import CLEAN, HARMLESS

KINDS = (
    *("F02", "F12", "F13", "F14", "F13w", "F15", "F01", "F03", "F05", "F11", "F22", "F18"),
    *("F06", "F07", "F08", "F04", "F09", "F10"),
)
"""The most important ones first."""

SEEDS = (311, 312, 313, 314, 315)
"""Not used anywhere else."""

MORE_SEEDS = {"F02": tuple(range(201, 216)), "F14": tuple(range(201, 206))}
"""For bars of 20: the sequences of F02; the rank of F13, F13w and F14 together."""

HEALTHY = ((CLEAN, SEEDS), (CLEAN_RANKS, SEEDS[:2]), *((kind, SEEDS[:1]) for kind in HARMLESS))
"""Runs in which no experiment may be started."""

USED_SEEDS = frozenset({*range(180, 188), *range(190, 199)})
"""Rules were changed after runs with these: `again` got more replays, a value that is not finite
became evidence for F12, exact answers got heavier weights, each rank's own norm names the rank,
growth is seen in three records, a replay that is finite names the hardware."""

PLACE_SEED, PLACE_ONSET = 220, 60


def main() -> None:
    """Measure what is missing, and publish."""
    arguments = _arguments()
    torch.set_num_threads(1)
    logging.getLogger("trimtab").setLevel(logging.CRITICAL)
    cache, ends = ResultCache(arguments.folder), time.monotonic() + 60 * arguments.minutes

    def get(name: str, run: Callable[[], dict[str, Any]]) -> dict[str, Any] | None:
        return cache.get(name, run) if time.monotonic() < ends or cache.has(name) else None

    kinds = arguments.kinds.split(",") if arguments.kinds else list(KINDS)
    seeds = [int(seed) for seed in arguments.seeds.split(",")] if arguments.seeds else list(SEEDS)
    more = {} if arguments.seeds else MORE_SEEDS
    wanted = [(kind, seed) for seed in seeds for kind in kinds]
    outcomes = {
        (kind, seed): found
        for kind, seed in wanted
        if (found := get(f"{kind} seed {seed}", partial(measure, kind, seed)))
    }
    extra = {
        (kind, seed): found
        for kind in kinds
        for seed in more.get(kind, ())
        if (found := get(f"{kind} seed {seed}", partial(measure, kind, seed)))
    }
    places = {}
    for number, (module, operation) in enumerate(PLACES[: arguments.places]):
        seed = PLACE_SEED + number
        plant = planted(module, operation, PLACE_ONSET, seed)
        found = get(f"place {module} {operation}", partial(measure, "F12", seed, plant))
        if found:
            places[module, operation] = found
    healthy = {
        (kind, seed): found
        for kind, some in HEALTHY[: arguments.healthy]
        for seed in some
        if (found := get(f"healthy {kind} seed {seed}", partial(measure, kind, seed)))
    }
    body = _body(outcomes, extra, places, healthy, kinds)
    if arguments.publish:
        publish("Experiments in the lab", "scripts/bench probes", body)
    else:
        print(body)


def _body(
    outcomes: dict[Any, Any],
    extra: dict[Any, Any],
    places: dict[Any, Any],
    healthy: dict[Any, Any],
    kinds: list[str],
) -> str:
    measured = [kind for kind in kinds if any(name == kind for name, _ in outcomes)]
    causes, right, plain, total = figures.cause_table(outcomes, measured)
    share = f"{100 * right / total:.0f} %" if total else "-"
    before = f"{100 * plain / total:.0f} %" if total else "-"
    used = sorted({seed for _, seed in outcomes} & USED_SEEDS)
    every = {**outcomes, **extra}
    parts = [
        f"Recovering runs of the lab, up to some steps after the fault. The cause named first is "
        f"right in {right} of {total} incidents ({share}; bar 95 %), without the answers of "
        f"experiments in {plain} ({before}).",
        f"Rules were changed after runs with seeds {used}: no claim." if used else "",
        causes,
        figures.hardware_line(every),
        figures.sequences_line(every),
        figures.places_line(places),
        figures.healthy_line(healthy),
        figures.remedies_line(every),
        "Cost, with putting the present back; time of a step as the run's median:",
        figures.cost_table({**every, **places}),
    ]
    return "\n\n".join(part for part in parts if part)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="scripts/bench probes", description=__doc__)
    parser.add_argument("folder", type=Path, help="where outcomes are kept")
    parser.add_argument("--seeds", default="", help="of the faults; default: five fresh ones")
    parser.add_argument("--kinds", default="", help="names, such as F02,F12; default: all")
    parser.add_argument("--minutes", type=float, default=1e6, help="no run begins later")
    parser.add_argument("--places", type=int, default=None, help="how many; default: all")
    parser.add_argument("--healthy", type=int, default=None, help="how many kinds; default: all")
    parser.add_argument("--no-publish", dest="publish", action="store_false")
    return parser.parse_args()


if __name__ == "__main__":
    main()
