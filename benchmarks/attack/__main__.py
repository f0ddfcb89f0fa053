"""scripts/bench attack faults|timeouts|purpose|hostile|all [OPTIONS]."""

import importlib
import sys

MODULES = {
    "faults": "fault_injection",
    "timeouts": "timeouts",
    "purpose": "purpose",
    "hostile": "hostile",
}


def main(arguments: list[str]) -> None:
    """Run one of the attacks with its options, or all of them with none."""
    command, *options = arguments or [""]
    if command not in (*MODULES, "all"):
        sys.exit(__doc__)
    for name in MODULES if command == "all" else [command]:
        sys.argv = [f"scripts/bench attack {name}", *(options if command != "all" else [])]
        importlib.import_module(f"benchmarks.attack.{MODULES[name]}").main()


if __name__ == "__main__":
    main(sys.argv[1:])
