"""scripts/bench recover flips|faults|phases|healthy [OPTIONS]."""

import argparse

from benchmarks.recover import faults, flips, phases


def main() -> None:
    """Run one of the measurements and publish its section."""
    parser = argparse.ArgumentParser(prog="scripts/bench recover")
    parser.add_argument("what", choices=["flips", "faults", "phases"])
    parser.add_argument("--seeds", type=int, help="10 for faults, 5 for phases")
    parser.add_argument("--flips", type=int, default=500)
    parser.add_argument("--folder", help="where outcomes are kept, to go on later")
    parser.add_argument("--only", nargs="*", default=[], help="some of the rows")
    given = parser.parse_args()
    if given.what == "flips":
        flips.publish_flips(given.flips, given.folder, given.only)
    elif given.what == "faults":
        faults.publish_faults(given.seeds or 10, given.folder, given.only)
    else:
        phases.publish_phases(given.seeds or 5)


if __name__ == "__main__":
    main()
