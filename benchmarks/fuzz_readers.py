"""Damaged inputs for all readers: `scripts/bench fuzz_readers [INPUTS] [--seed N] [--keep]`.

`--only TEXT...` reads only what has one of these texts in its name, such as config.

Nothing but our own errors may come out, no input may take long, and memory may not grow. --keep
writes a small input for every kind of outcome into `tests/fuzz/inputs`, which CI reads.
"""

import argparse
import logging
import math
import resource
import sys
import tempfile
import warnings
from collections import Counter
from pathlib import Path

from tests.kit.fuzz.session import INPUTS as KEPT
from tests.kit.fuzz.session import LONGEST, Tally, keep, mutate
from tests.kit.fuzz.targets import Target, all_targets

from benchmarks.results import publish, table
from trimtab.readers.reading import FORMATS

INPUTS = 50_000
BAR = 1_000_000
MORE_MEMORY = 1 << 30
"""Bytes that the whole process may grow by."""
HEADER = ("what is read", "inputs", "read after all", "refused", "other errors, hangs", "slowest")


def main() -> None:
    """Read many damaged inputs, and publish what came out."""
    parser = argparse.ArgumentParser(prog="scripts/bench fuzz_readers", description=__doc__)
    parser.add_argument("inputs", type=int, nargs="?", default=INPUTS)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=math.inf, help="of processor time at most")
    parser.add_argument("--keep", action="store_true")
    parser.add_argument("--only", nargs="*", default=[""], metavar="TEXT")
    parser.add_argument("--no-publish", action="store_true")
    arguments = parser.parse_args()
    warnings.simplefilter("error")  # nobody wants to see what numpy thinks of a log
    logging.disable(logging.CRITICAL)  # the judge reports a state that it cannot use
    memory = "/dev/shm" if Path("/dev/shm").is_dir() else None
    with tempfile.TemporaryDirectory(dir=memory) as name:
        targets = [
            target
            for target in all_targets(Path(name) / "seeds")
            if any(text in target.name for text in arguments.only)
        ]
        _, most = resource.getrlimit(resource.RLIMIT_AS)
        resource.setrlimit(resource.RLIMIT_AS, (_address_space() + MORE_MEMORY, most))
        tallies = mutate(
            targets,
            arguments.inputs,
            Path(name),
            arguments.seed,
            seconds=arguments.seconds,
        )
    if arguments.keep:
        print(f"{keep(tallies, KEPT)} inputs kept in {KEPT}")
    if not arguments.no_publish:
        report(targets, tallies, arguments)
    failures = [failure for tally in tallies.values() for failure in tally.failures]
    for failure in failures[:20]:
        print(failure)
    sys.exit(bool(failures))


def report(targets: list[Target], tallies: dict[str, Tally], chosen: argparse.Namespace) -> None:
    """Publish what came out."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    groups: dict[str, list[Tally]] = {}
    for name, tally in tallies.items():
        groups.setdefault(name.partition(":")[0], []).append(tally)
    rows = [_row(name, group) for name, group in groups.items()]
    rows.append(_row("all", list(tallies.values())))
    total = sum(tally.inputs for tally in tallies.values())
    kinds = sum(len(tally.interesting) for tally in tallies.values())
    whole = sum(len(target.seeds) for target in targets)
    body = (
        f"{total:,} inputs (bar {BAR:,}) by a seeded generator, seed {chosen.seed}: "
        f"{len(FORMATS)} log readers, each by itself and by recognition, configs, the journal, the "
        f"state of a judge, checkpoints and corpora, from {whole:,} whole inputs; {kinds:,} kinds "
        f"of outcome. {usage.ru_utime + usage.ru_stime:.0f} s of CPU time, "
        f"{usage.ru_maxrss / 1024:.0f} MB at most.\n\n"
    )
    title, command = "Readers: damaged inputs", "scripts/bench fuzz_readers"
    if any(chosen.only):
        title += " of some readers"
        command += f" {total} --seed {chosen.seed} --only {' '.join(chosen.only)}"
        names = ", ".join(target.name for target in targets)
        body = f"{total:,} inputs, seed {chosen.seed}: {names}. Bar: 0 other errors and hangs.\n\n"
    failures = sum(len(tally.failures) for tally in tallies.values())
    slowest = max(tally.slowest for tally in tallies.values())
    headlines = [
        (f"errors that are not ours and hangs, in {total:,} damaged inputs", failures, 0),
        ("the slowest of them", f"{slowest:.1f} s", f"{LONGEST:.0f} s"),
    ]
    publish(title, command, body + table(HEADER, rows), headlines)


def _row(name: str, tallies: list[Tally]) -> tuple[str, ...]:
    refused: Counter[str] = sum((tally.refused for tally in tallies), Counter())
    named = ", ".join(f"{count:,} {error}" for error, count in sorted(refused.items()))
    return (
        name,
        f"{sum(tally.inputs for tally in tallies):,}",
        f"{sum(tally.read for tally in tallies):,}",
        named or "0",
        f"{sum(len(tally.failures) for tally in tallies):,}",
        f"{max(tally.slowest for tally in tallies):.2f} s",
    )


def _address_space() -> int:
    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()


if __name__ == "__main__":
    main()
