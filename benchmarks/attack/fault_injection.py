"""Every function that a run calls raises, one at a time: which of them end or change the run?"""

import argparse
import time
from collections import Counter
from collections.abc import Sequence

import torch
from tests.kit.fault_injection import (
    ALLOWED,
    FAULTS,
    Outcome,
    Verdict,
    called_targets,
    inject,
    reference,
    targets,
)
from tests.kit.watched_run import MODES

from benchmarks.results import publish, table

USUAL = ("always", "late")
"""Faults that are tried without --faults: the others differ from "always" in few functions."""


def main() -> None:
    """Run the attack and publish a section for each mode."""
    parser = argparse.ArgumentParser(prog="scripts/bench attack faults")
    parser.add_argument("modes", nargs="*", help="observe, protect, recover; default: all")
    parser.add_argument("--faults", nargs="+", choices=[*FAULTS, "all"], default=USUAL)
    parser.add_argument("--only", default="", help="functions whose name has this text")
    parser.add_argument("--dry", action="store_true", help="leave RESULTS.md as it is")
    given = parser.parse_args()
    for mode in given.modes:
        if mode not in MODES:
            parser.error(f"unknown mode: {mode}")
    torch.set_num_threads(1)
    faults = tuple(FAULTS) if "all" in given.faults else tuple(given.faults)
    for mode in given.modes or MODES:
        verdicts = {fault: attack(mode, fault, given.only) for fault in faults}
        report(mode, verdicts, is_dry=given.dry or bool(given.only))


def attack(mode: str, fault: str, only: str = "") -> list[Verdict]:
    """Break every function that a run calls, one at a time."""
    whole = reference(mode)
    chosen = [target for target in called_targets(mode) if only in target.name]
    started = time.monotonic()
    verdicts = [inject(target, FAULTS[fault], mode, whole) for target in chosen]
    seconds = time.monotonic() - started
    print(f"{mode} {fault}: {len(verdicts)} of {len(targets())} functions, {seconds:.0f} s")
    for verdict in verdicts:
        if verdict.breaks_promise(mode):
            print(f"  {verdict.outcome} {verdict.place}: {verdict.target} {verdict.error}")
    return verdicts


def report(mode: str, verdicts: dict[str, list[Verdict]], *, is_dry: bool) -> None:
    """Publish the counts of a mode."""
    rows = [_row(name, mode, each) for name, each in verdicts.items()]
    header = (
        *("fault", "functions", "same bits", "raised, allowed", "raised", "ended by a sentence"),
        *("other bits, announced", "other bits, silent", "hung"),
    )
    every = [verdict for each in verdicts.values() for verdict in each]
    places = Counter(
        verdict.place
        for verdict in every
        if verdict.outcome is Outcome.RAISED and not verdict.is_allowed
    )
    where = ", ".join(f"{count} in {place}" for place, count in places.most_common())
    body = (
        "Every function, method and property of trimtab.live, .state and .journal that a run of 16 "
        "steps calls raises from step 6 on, one at a time: in every call (always, runtime: a "
        "RuntimeError, memory: a MemoryError), in the first one (once), or after it has done its "
        "work (late). In protect and recover the loss of step 10 is NaN. Allowed are "
        f"{len(ALLOWED)} patterns of names: the entrances, the shield and the user's loader. "
        f"Exceptions that are not allowed: {where or 'none'}.\n\n{table(header, rows)}"
    )
    broken = sum(verdict.breaks_promise(mode) for verdict in every)
    number = sum(verdict.outcome is not Outcome.NOT_CALLED for verdict in every)
    title = f"Live: functions that raise, {mode}"
    headline = (f"broken functions that {mode} does not survive", f"{broken} of {number}", 0)
    publish(title, f"scripts/bench attack faults {mode}", body, [headline], is_dry=is_dry)


def _row(name: str, mode: str, verdicts: Sequence[Verdict]) -> tuple[object, ...]:
    called = [verdict for verdict in verdicts if verdict.outcome is not Outcome.NOT_CALLED]
    kinds = Counter(verdict.outcome for verdict in called)
    allowed = sum(v.outcome is Outcome.RAISED and v.is_allowed for v in called)
    silent = sum(v.outcome is Outcome.OTHER_BITS and v.breaks_promise(mode) for v in called)
    return (
        *(name, len(called), kinds[Outcome.HELD], allowed, kinds[Outcome.RAISED] - allowed),
        *(kinds[Outcome.ENDED], kinds[Outcome.OTHER_BITS] - silent, silent, kinds[Outcome.HUNG]),
    )


if __name__ == "__main__":
    main()
