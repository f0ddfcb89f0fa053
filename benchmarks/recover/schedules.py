"""Random schedules on four ranks: `scripts/bench recover.schedules FOLDER [--count 500]`.

Rollbacks, probes, NaN, ranks that come late or leave, bugs of ours and restores that fail half-way:
no rank may wait for ever, and all must end alike. What was run is kept in FOLDER, so a measurement
can be continued; with `--minutes N` none begins later.
"""

import argparse
import logging
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from tests.kit.launch import run_ranks
from tests.kit.recover_schedules import (
    WORLD,
    Schedule,
    follow_all,
    make_schedule,
    require_agreement,
    require_all_end,
)

from benchmarks.result_cache import ResultCache
from benchmarks.results import publish, table

CHUNK = 10
"""Schedules in one set of processes; those whose restore fails have a set of their own."""

CHUNK_SECONDS = 600.0


def main() -> None:
    """Run what is missing, and publish."""
    arguments = _arguments()
    logging.getLogger("trimtab").setLevel(logging.CRITICAL)
    cache = ResultCache(arguments.folder)
    ends = time.monotonic() + 60 * arguments.minutes
    missing = [seed for seed in range(arguments.count) if not cache.has(str(seed))]
    for seeds in _chunks(missing):
        if time.monotonic() > ends:
            break
        for seed, problem in _run(seeds).items():
            cache.get(str(seed), partial(dict, problem=problem))
    known = [seed for seed in range(arguments.count) if cache.has(str(seed))]
    problems = {seed: cache.get(str(seed), dict)["problem"] for seed in known}
    if arguments.publish:
        publish("Recovery on four ranks", "scripts/bench recover.schedules", _body(problems))
    else:
        print(_body(problems))


def _chunks(seeds: list[int]) -> Iterator[list[int]]:
    """Seeds that share a set of processes."""
    calm = [seed for seed in seeds if make_schedule(seed).breaks is None]
    failing = [seed for seed in seeds if seed not in calm]
    for place in range(0, max(len(calm), len(failing)), CHUNK):
        if calm[place : place + CHUNK]:
            yield calm[place : place + CHUNK]
        yield from ([seed] for seed in failing[place : place + CHUNK])


def _run(seeds: list[int]) -> dict[int, str]:
    """What is wrong with each schedule; "" if nothing is."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if make_schedule(seeds[0]).breaks is not None:
            return {seeds[0]: _problem(require_all_end, make_schedule(seeds[0]), folder)}
        try:
            ranks = run_ranks(follow_all, WORLD, seeds, folder, deadline=CHUNK_SECONDS)
        except AssertionError as error:
            if len(seeds) == 1:
                return {seeds[0]: str(error)[-2000:]}
            return {seed: text for one in seeds for seed, text in _run([one]).items()}
        return {
            seed: _problem(require_agreement, make_schedule(seed), list(ends), folder / str(seed))
            for seed, *ends in zip(seeds, *ranks, strict=True)
        }


def _problem(check: Callable[..., None], *arguments: object) -> str:
    try:
        check(*arguments)
    except AssertionError as error:
        return str(error)[-2000:] or "failed"
    return ""


def _body(problems: dict[int, str]) -> str:
    schedules = {seed: make_schedule(seed) for seed in problems}
    counts: list[tuple[str, Callable[[Schedule], bool]]] = [
        ("all", lambda schedule: True),
        ("a restore fails half-way on a rank", lambda s: s.breaks is not None),
        ("a part of trimtab raises on a rank", lambda s: s.bug is not None),
        ("a rank leaves the guard", lambda s: s.leaves is not None),
        ("a rank comes late", lambda s: bool(s.delays)),
        ("NaN on a rank", lambda s: bool(s.nan)),
    ]
    rows = []
    for what, fits in counts:
        of_it = [seed for seed, schedule in schedules.items() if fits(schedule)]
        rows.append([what, len(of_it), sum(bool(problems[seed]) for seed in of_it)])
    failed = [seed for seed, problem in problems.items() if problem]
    more = f" Failed: {', '.join(map(str, failed))}." if failed else ""
    return (
        "Random schedules of rollbacks, probes and faults on 4 gloo ranks (DDP), 40 steps each. A "
        "schedule fails if a rank hangs, if ranks end after different steps, attempts or with "
        "different weights, or, where a restore fails half-way, if a rank does not end by an error "
        f"that says how to go on. Bar: 0 of 500.{more}\n\n"
        + table(("schedules in which", "run", "failed"), rows)
    )


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="scripts/bench recover.schedules", description=__doc__)
    parser.add_argument("folder", type=Path, help="where outcomes are kept")
    parser.add_argument("--count", type=int, default=500)
    parser.add_argument("--minutes", type=float, default=1e6, help="none begins later")
    parser.add_argument("--no-publish", dest="publish", action="store_false")
    return parser.parse_args()


if __name__ == "__main__":
    main()
