"""scripts/bench recover flips|phases [OPTIONS]."""

import argparse

from benchmarks.recover import flips, phases


def main() -> None:
    """Run one of the measurements and publish its section."""
    parser = argparse.ArgumentParser(prog="scripts/bench recover")
    parser.add_argument("what", choices=["flips", "phases"])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--flips", type=int, default=500)
    given = parser.parse_args()
    if given.what == "flips":
        flips.publish_flips(given.flips)
    else:
        phases.publish_phases(given.seeds)


if __name__ == "__main__":
    main()
