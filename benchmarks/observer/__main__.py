"""scripts/bench observer ends|verdicts|load|trace [OPTIONS]."""

import importlib
import sys

COMMANDS = ("ends", "verdicts", "load", "trace")


def main(arguments: list[str]) -> None:
    """Run one of the measurements with its options."""
    command, *options = arguments or [""]
    if command not in COMMANDS:
        sys.exit(__doc__)
    sys.argv = [f"scripts/bench observer {command}", *options]
    importlib.import_module(f"benchmarks.observer.{command}").main()


if __name__ == "__main__":
    main(sys.argv[1:])
