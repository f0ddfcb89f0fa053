"""scripts/bench recover flips|faults|schedules [OPTIONS]."""

import argparse

from benchmarks.recover import faults, flips, schedules


def main() -> None:
    """Run one of the measurements and publish its section."""
    parser = argparse.ArgumentParser(prog="scripts/bench recover")
    parser.add_argument("what", choices=("flips", "faults", "schedules"))
    parser.add_argument("--seeds", type=int, default=10, help="of each fault")
    parser.add_argument("--flips", type=int, default=500)
    parser.add_argument("--schedules", type=int, default=500)
    parser.add_argument("--seconds", type=float, default=1e9, help="of schedules, at most")
    parser.add_argument("--folder", help="where outcomes are kept, to go on later")
    given = parser.parse_args()
    if given.what == "flips":
        flips.publish_flips(given.flips, given.folder)
    elif given.what == "faults":
        faults.publish_faults(given.seeds, given.folder)
    else:
        schedules.publish_schedules(given.schedules, given.folder, given.seconds)


if __name__ == "__main__":
    main()
