"""What training pays: the same loop with and without a shipper, in turns."""

import json
import os
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

import trimtab
from benchmarks.ship.proxy import database_and_server
from trimtab.core.config import Config, ShipConfig

PAIRS, STEPS = 3, 300
WARM_UP = 100
"""Steps at the start of each loop that are not counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCost:
    """Steps with a shipper in units of steps without, over all pairs of loops."""

    wall: float
    """By the median wall time of a step."""
    cpu: float
    """By the processor time of the training process: less noise on a busy machine."""
    median_ms: float
    worst_append_ms: float
    start_ms: float
    """How much longer `watch` takes with a shipper."""


def measure(folder: Path) -> StepCost:
    """Run the loops in processes of their own, each pair in the other order than the last."""
    found: dict[str, list[dict[str, float]]] = {"": [], "mlflow": []}
    with database_and_server(folder) as (_, server):
        environment = {**os.environ, "MLFLOW_TRACKING_URI": server.url, "NO_PROXY": "127.0.0.1"}
        for pair in range(PAIRS):
            for sink in ("", "mlflow") if pair % 2 else ("mlflow", ""):
                run = folder / f"run-{pair}-{sink or 'none'}"
                done = subprocess.run(
                    [sys.executable, "-m", "benchmarks.ship.step_cost", str(run), sink],
                    env=environment,
                    check=True,
                    capture_output=True,
                    text=True,
                )
                found[sink].append(json.loads(done.stdout))
    return StepCost(
        wall=_ratio(found, "median"),
        cpu=_ratio(found, "cpu"),
        median_ms=1000 * statistics.median(one["median"] for one in found["mlflow"]),
        worst_append_ms=1000 * max(one["append"] for one in found["mlflow"]),
        start_ms=1000
        * (
            statistics.median(one["start"] for one in found["mlflow"])
            - statistics.median(one["start"] for one in found[""])
        ),
    )


def _ratio(found: dict[str, list[dict[str, float]]], name: str) -> float:
    pairs = zip(found["mlflow"], found[""], strict=True)
    return statistics.median(one[name] / other[name] for one, other in pairs)


def train(run: str, sink: str) -> dict[str, float]:
    """A small loop; the median step, the processor time of a step, the longest append."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = nn.Sequential(*(nn.Linear(384, 384) for _ in range(8)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    batch = torch.randn(64, 384)
    seconds: list[float] = []
    append = 0.0
    began = time.perf_counter()
    config = Config(ship=ShipConfig(to=(sink,) if sink else ()))
    guard = trimtab.watch(model, optimizer, run_dir=run, config=config)
    start = time.perf_counter() - began
    journal = guard._monitor.recorder.journal  # type: ignore[union-attr]
    inner = journal.append

    def timed(*given: object, **named: object) -> int:
        nonlocal append
        began = time.perf_counter()
        tick = inner(*given, **named)  # type: ignore[arg-type]
        append = max(append, time.perf_counter() - began)
        return tick

    journal.append = timed  # type: ignore[method-assign]
    with guard:
        for step in range(STEPS):
            if step == WARM_UP:
                cpu = time.process_time()
            began = time.perf_counter()
            loss = (model(batch) - batch).square().mean()
            guard.record(loss=loss, tokens=64)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            seconds.append(time.perf_counter() - began)
        cpu = (time.process_time() - cpu) / (STEPS - WARM_UP)
    median = statistics.median(seconds[WARM_UP:])
    return {"median": median, "cpu": cpu, "append": append, "start": start}


if __name__ == "__main__":
    print(json.dumps(train(sys.argv[1], sys.argv[2])))
