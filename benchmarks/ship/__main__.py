"""`scripts/bench ship`: about ten minutes; needs PostgreSQL, and MLflow with psycopg2."""

import argparse
import tempfile
from pathlib import Path

from benchmarks.results import publish, table
from benchmarks.ship.killing import Outcome, ship_while_killing
from benchmarks.ship.proxy import ship_through_proxy
from benchmarks.ship.step_cost import PAIRS, STEPS, measure

TITLE = "Sending to MLflow"


def main() -> None:
    parser = argparse.ArgumentParser(prog="scripts/bench ship")
    parser.add_argument("--steps", type=int, default=1000, help="steps of 20 points each")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        root.chmod(0o755)  # the database runs as a different user
        killed = ship_while_killing(root / "killing", steps=arguments.steps, per_second=15, kills=2)
        lossy, fates = ship_through_proxy(root / "proxy", steps=arguments.steps // 2)
        cost = measure(root / "cost")
    kills = (
        f"{killed.server_kills} SIGKILLs of the server, {killed.database_kills} of PostgreSQL and "
        f"its children, {killed.shipper_kills} of the shipper"
    )
    faults = (
        f"{fates['lost']} replies lost, {fates['cut']} cut, {fates['delayed']} delayed beyond the "
        f"deadline, {fates['kept']} kept"
    )
    rows = [
        [
            kills,
            _arrived(killed),
            _wanted(killed),
        ],
        [
            faults,
            _arrived(lossy),
            _wanted(lossy),
        ],
        ["longest append while all of that dies", f"{killed.worst_append_ms:.1f} ms", "-"],
        ["step with a shipper, processor time of the trainer", f"{cost.cpu:.3f}", "1.01"],
        [
            f"the same, median wall time of {cost.median_ms:.1f} ms",
            f"{cost.wall:.3f}",
            "1.01 on an idle machine",
        ],
        ["longest append in that loop", f"{cost.worst_append_ms:.1f} ms", "-"],
        ["`watch` takes longer by", f"{cost.start_ms:.0f} ms", "-"],
    ]
    body = (
        "A real MLflow server on a real PostgreSQL, both on loopback. Points are the finite values "
        "in the journal; a mark is a record with a value that is not finite. "
        f"Step cost: {PAIRS} pairs of loops of {STEPS} steps, in turns.\n\n"
        + table(["what", "measured", "bar"], rows)
    )
    publish(TITLE, "scripts/bench ship", body)


def _arrived(outcome: Outcome) -> str:
    rows = f"{outcome.rows:,} rows, {outcome.distinct:,} distinct"
    return f"{rows}, {outcome.marked} marks, {outcome.runs} run, in {outcome.seconds:.0f} s"


def _wanted(outcome: Outcome) -> str:
    return f"{outcome.points:,} points, each once, {outcome.marks} marks, 1 run"


if __name__ == "__main__":
    main()
