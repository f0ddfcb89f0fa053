"""DeepSpeed's engines with and without trimtab: `scripts/bench trainers deepspeed [--dry]`.

Every ZeRO stage in every precision on 1 and 2 ranks, with accumulation and with offload; and what a
guard costs, in one process in which the engines take turns.
"""

import argparse
import importlib.metadata
import itertools
import statistics
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tests.kit.deepspeed_engines import HUGE, NAN, TYPES, Run, all_modes, prepare
from tests.kit.launch import run_ranks

import trimtab
from benchmarks.results import publish, table

STAGES = (0, 1, 2, 3)

OFFLOAD = {"zero_optimization": {"offload_optimizer": {"device": "cpu"}}}

WIDTH, BLOCKS, ROWS = 512, 4, 512
"""The model and batch of the cost: 1.3 million parameters."""

ROUNDS, TURN = 24, 4
"""Turns of each engine, and its steps in one."""


@dataclass(frozen=True, kw_only=True)
class Setting:
    stage: int
    dtype: str
    ranks: int
    kind: str = ""
    options: Any = None

    @property
    def has_own_skip(self) -> bool:
        """Whether the engine can skip an update: without ZeRO in fp32 it steps a plain optimizer,
        whose schedule goes on and whose excessive steps are scaled down."""
        return (self.stage, self.dtype) != (0, "fp32")


def settings() -> list[Setting]:
    found = [
        Setting(stage=stage, dtype=dtype, ranks=ranks)
        for stage, dtype, ranks in itertools.product(STAGES, TYPES, (1, 2))
    ]
    for stage, ranks in itertools.product((1, 2, 3), (1, 2)):
        common: dict[str, Any] = {"stage": stage, "dtype": "bf16", "ranks": ranks}
        found.append(Setting(**common, kind="accumulation 3", options={"accumulate": 3}))
        found.append(Setting(**common, kind="offload", options=OFFLOAD))
    return found


def failures(setting: Setting) -> dict[str, bool]:
    """Return what was not as it must be, by column."""
    with tempfile.TemporaryDirectory() as folder:
        of_ranks = run_ranks(
            *(all_modes, setting.ranks, Path(folder), setting.stage, setting.dtype),
            setting.options,
            deadline=300,
        )
    rows = [_judged(setting, found) for found in of_ranks]
    return {name: any(row[name] for row in rows) for name in rows[0]}


def _judged(setting: Setting, found: dict[str, Run]) -> dict[str, bool]:
    bare, seen, safe = found["None"], found["observe"], found["protect"]

    def changed(number: int) -> bool:
        before, after = safe.around[number]
        if not setting.has_own_skip:
            before, after = ({**state, "lr": 0} for state in (before, after))
        return bool(before != after)

    return {
        "observe": bare.state != seen.state,
        "nan": changed(NAN),
        "huge": setting.has_own_skip and changed(HUGE),
        "goes_on": not safe.later_moves,
    }


def costs(stage: int) -> dict[str, float]:
    """Return by mode how many times as long a step takes as without trimtab."""
    deepspeed, engines, guards = prepare(), {}, []
    for mode in ("bare", "observe", "protect"):
        torch.manual_seed(0)
        layers = (
            torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH), torch.nn.GELU())
            for _ in range(BLOCKS)
        )
        model = torch.nn.Sequential(*layers, torch.nn.Linear(WIDTH, 1))
        engines[mode], *_ = deepspeed.initialize(
            model=model,
            optimizer=torch.optim.AdamW(model.parameters(), lr=1e-4),
            config={
                "train_micro_batch_size_per_gpu": ROWS,
                "zero_allow_untested_optimizer": True,
                "zero_optimization": {"stage": stage},
                "gradient_clipping": 1.0,
            },
        )
        if mode != "bare":
            folder = tempfile.mkdtemp()
            guards.append(trimtab.watch(engines[mode], run_dir=folder, mode=mode, observer=False))
    inputs, targets = torch.randn(ROWS, WIDTH), torch.randn(ROWS, 1)
    taken: dict[str, list[float]] = {mode: [] for mode in engines}
    for number in range(ROUNDS + 2):
        for mode in sorted(engines, reverse=bool(number % 2)):
            began = time.thread_time()
            for _ in range(TURN):
                engine = engines[mode]
                engine.backward(((engine(inputs) - targets) ** 2).mean())
                engine.step()
            taken[mode].append(time.thread_time() - began)
    for guard in guards:
        guard.close()
    pairs = {mode: list(zip(taken[mode], taken["bare"], strict=True))[2:] for mode in engines}
    found = {mode: statistics.median(a / b for a, b in pairs[mode]) for mode in engines}
    return found | {"bare": 1000 * statistics.median(taken["bare"]) / TURN}


def measured_costs(rank: int, stage: int) -> dict[str, float]:
    return costs(stage)


def main(arguments: list[str]) -> None:
    """Measure and publish."""
    parser = argparse.ArgumentParser(prog="scripts/bench trainers deepspeed")
    parser.add_argument("--dry", action="store_true", help="print, and leave RESULTS.md alone")
    parser.add_argument("--cost", action="store_true", help="the cost alone")
    chosen = parser.parse_args(arguments)
    cells, failed = [], []
    found = [(one, failures(one)) for one in ([] if chosen.cost else settings())]
    for (stage, kind), group in itertools.groupby(
        sorted(found, key=lambda pair: (pair[0].kind, pair[0].stage)),
        key=lambda pair: (pair[0].stage, pair[0].kind),
    ):
        rows = list(group)
        columns = [sum(not bad[name] for _, bad in rows) for name in rows[0][1]]
        what = ", ".join(filter(None, (f"ZeRO {stage}", kind)))
        types = ", ".join(dict.fromkeys(one.dtype for one, _ in rows))
        cells.append([what, types, *(f"{count} of {len(rows)}" for count in columns)])
        failed += [f"- {one}: {bad}" for one, bad in rows if any(bad.values())]
    ratios = [
        (f"ZeRO {stage}", run_ranks(measured_costs, 1, stage, deadline=600)[0]) for stage in (2, 3)
    ]
    version = importlib.metadata.version("deepspeed")
    text = HEAD.format(version=version) + table(COLUMNS, cells)
    text += "\n\nFailures:\n\n" + "\n".join(failed) if failed else ""
    text += COST + table(
        ["engine", "a step without trimtab", "observe", "protect"],
        [
            [name, f"{one['bare']:.0f} ms", f"{one['observe']:.3f}", f"{one['protect']:.3f}"]
            for name, one in ratios
        ],
    )
    if chosen.dry:
        print(text)
    else:
        publish("Live: DeepSpeed", "scripts/bench trainers deepspeed", text)


COLUMNS = ["engine", "precision", "observe", "NaN batch", "huge batch", "goes on"]
HEAD = (
    "deepspeed {version} on the CPU, a tiny model, 134 updates, on 1 and 2 ranks; on 2 ranks one "
    "of them alone has the bad batches. `observe`: weights, fp32 masters, moments and learning "
    "rate have the bits of the run without trimtab. NaN batch (update 20) and huge batch (130, "
    "finite): in `protect` all of these stay as they were, on every rank, the learning rate too. "
    "Without ZeRO in fp32 the engine has no skip of its own: its schedule goes on, and the huge "
    "step is scaled down. Goes on: the update after the last bad batch changes the weights. Bar: "
    "all.\n\n"
)
COST = (
    "\n\nCost in fp32, one rank, with 512 rows of 512 numbers: engines of one process take turns "
    "of 4 steps; the median of 24 ratios of thread time to the turn without trimtab.\n\n"
)
