"""scripts/bench recover flips|faults|phases|schedules [OPTIONS]."""

import argparse

from benchmarks.recover import faults, flips, phases, schedules


def main() -> None:
    """Run one of the measurements and publish its section."""
    parser = argparse.ArgumentParser(prog="scripts/bench recover")
    kinds = ["flips", "faults", "phases", "schedules"]
    parser.add_argument("what", choices=kinds)
    parser.add_argument("--seeds", type=int, help="10, for phases 5")
    parser.add_argument("--bare", type=int, default=1, help="seeds of phases without a guard")
    parser.add_argument("--flips", type=int, default=500)
    parser.add_argument("--schedules", type=int, default=500)
    parser.add_argument("--seconds", type=float, default=1e9, help="of schedules, at most")
    parser.add_argument("--folder", help="where outcomes are kept, to go on later")
    parser.add_argument("--only", nargs="*", default=[], help="some of the rows")
    given = parser.parse_args()
    if given.what == "flips":
        flips.publish_flips(given.flips, given.folder, given.only)
    elif given.what == "faults":
        faults.publish_faults(given.seeds or 10, given.folder, given.only)
    elif given.what == "schedules":
        schedules.publish_schedules(given.schedules, given.folder, given.seconds)
    else:
        phases.publish_phases(given.seeds or 5, given.folder, given.only, given.bare)


if __name__ == "__main__":
    main()
