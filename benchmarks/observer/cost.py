"""Thread time of trimtab inside the entrances of a loop, and the processor time of both processes.

scripts/bench observer cost --src OTHER_CHECKOUT/src    the same loop with another version
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.results import publish, table

CHILD = """
import json, resource, sys, tempfile, time
import torch
import trimtab
from trimtab.live import shield

torch.set_num_threads(1)
spent, depth = 0.0, 0


def timed(call):
    def wrapper(*arguments, **named):
        global spent, depth
        depth += 1
        began = time.thread_time()
        try:
            return call(*arguments, **named)
        finally:
            depth -= 1
            if not depth:
                spent += time.thread_time() - began
    return wrapper


shield.Entrance.__call__ = timed(shield.Entrance.__call__)
size, mode, steps = sys.argv[1], sys.argv[2], int(sys.argv[3])
torch.manual_seed(0)
width, rows = (128, 32) if size == "1 ms" else (1600, 64)
layers = [torch.nn.Linear(width, width) for _ in range(3 if size == "1 ms" else 4)]
model = torch.nn.Sequential(*layers)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
inputs = torch.randn(rows, width)
with tempfile.TemporaryDirectory() as folder:
    with trimtab.watch(model, optimizer, run_dir=folder, mode=mode) as guard:
        for step in range(steps + 50):
            if step == 50:
                spent = 0.0
                began = time.process_time()
            loss = (model(inputs) - inputs).square().mean()
            guard.record(loss=loss)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        trainer = time.process_time() - began
        inside = spent
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
both = trainer + children.ru_utime + children.ru_stime
print(json.dumps({"inside_us": 1e6 * inside / steps, "trainer_us": 1e6 * trainer / steps,
                  "both_us": 1e6 * both / steps}))
"""

SIZES = {"1 ms": 1000, "10M": 200}
"""Steps that are measured of each."""


def main() -> None:
    """Measure each version in turn and publish."""
    parser = argparse.ArgumentParser(prog="scripts/bench observer cost")
    parser.add_argument("--src", type=Path, help="the src folder of another version")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=0, help="instead of 1,000")
    parser.add_argument("--dry", action="store_true", help="leave RESULTS.md as it is")
    given = parser.parse_args()
    here = Path(__file__).parents[2] / "src"
    sources = {"now": here, **({"before": given.src} if given.src else {})}
    rows = []
    for size, steps in SIZES.items():
        for mode in ("observe", "protect", "recover"):
            found: dict[str, list[dict[str, float]]] = {name: [] for name in sources}
            for _ in range(given.rounds):
                for name, source in sources.items():
                    found[name].append(_measure(source, size, mode, given.steps or steps))
            for name, values in found.items():
                mean = {key: sum(one[key] for one in values) / len(values) for key in values[0]}
                rows.append([size, mode, name, *(f"{value:,.0f}" for value in mean.values())])
                print(rows[-1], flush=True)
    header = ["step", "mode", "version", "ours in the training thread", "trainer", "both processes"]
    body = (
        "Microseconds of a step, mean of 1,000 steps (10M: 200): thread time inside the "
        "entrances, processor "
        f"time of the training process, and of it with its children. {given.rounds} rounds, "
        "versions in turn.\n\n"
    )
    body += table(header, rows)
    if not given.dry:
        publish("Observer: cost in the training process", "scripts/bench observer cost", body)


def _measure(source: Path, size: str, mode: str, steps: int) -> dict[str, float]:
    with tempfile.NamedTemporaryFile("w", suffix=".py") as file:
        file.write(CHILD)
        file.flush()
        done = subprocess.run(
            [sys.executable, file.name, size, mode, str(steps)],
            env={**os.environ, "PYTHONPATH": str(source), "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            check=True,
        )
    values: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return values


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    main()
