"""Real engines of DeepSpeed on a processor, in processes of their own, and all that they hold."""

import logging
import os
import sys
import warnings
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import trimtab

BATCH, WIDTH, OUT = 64, 8, 2
"""ZeRO 3 fills the parts of ranks up with memory as it finds it: all sizes are even."""

TYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def prepare() -> Any:
    """Import DeepSpeed in a process that has met the others; returns the package."""
    warnings.simplefilter("ignore")  # those of DeepSpeed and of torch about DeepSpeed
    os.environ |= {"DS_ACCELERATOR": "cpu", "LOCAL_RANK": "0"}
    import deepspeed
    import deepspeed.comm.torch

    # It would compile C++ at its first start, for all-reduces of one machine.
    vars(sys.modules["deepspeed.comm.torch"])["build_shm_op"] = lambda: None
    accelerator: Any = deepspeed.get_accelerator()
    accelerator.is_fp16_supported = lambda: True  # slow, but right
    logging.getLogger("DeepSpeed").setLevel(logging.ERROR)
    return deepspeed


def make_engine(stage: int, dtype: str, *, accumulate: int = 1, **options: Any) -> Any:
    """Return an engine with a small model, always the same one; `options` are its settings."""
    deepspeed = prepare()
    torch.manual_seed(0)
    layers = torch.nn.Sequential(torch.nn.Linear(WIDTH, 32), torch.nn.Tanh())
    parts = OrderedDict(layers=layers, head=torch.nn.Linear(32, OUT))
    model = torch.nn.Sequential(parts)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    settings: dict[str, Any] = {
        "train_micro_batch_size_per_gpu": BATCH,
        "gradient_accumulation_steps": accumulate,
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
        "gradient_clipping": 1.0,
        **options,
        "zero_optimization": {"stage": stage, **options.get("zero_optimization", {})},
    }
    if dtype != "fp32":
        settings[dtype] = {"enabled": True, **options.get(dtype, {})}
    if dtype == "fp16":
        settings[dtype].setdefault("initial_scale_power", 4)
    engine, *_ = deepspeed.initialize(
        model=model,
        optimizer=optimizer,
        config=settings,
        lr_scheduler=torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step)),
    )
    return engine


def batches(num: int, dtype: str, rank: int, bad: Mapping[int, str]) -> list[Any]:
    """Return the batches of a rank; "nan" makes one of them NaN, "huge" huge and finite."""
    drawn = torch.Generator().manual_seed(1 + rank)
    weights = torch.randn(WIDTH, OUT, generator=torch.Generator().manual_seed(9))
    found = []
    for number in range(num):
        inputs = torch.randn(BATCH, WIDTH, generator=drawn)
        targets = inputs @ weights
        if bad.get(number) == "nan":
            inputs = inputs * torch.nan
        if bad.get(number) == "huge":
            inputs, targets = inputs * 100, targets * (100 if dtype == "fp16" else 1000)
        found.append((inputs.to(TYPES[dtype]), targets))
    return found


def loss_of(engine: Any, batch: Any) -> torch.Tensor:
    inputs, targets = batch
    found: torch.Tensor = ((engine(inputs).float() - targets) ** 2).mean()
    return found


def state_of(engine: Any) -> dict[str, Any]:
    """Return the bits of weights, fp32 masters and moments on this rank, and the learning rate."""
    optimizer = engine.optimizer
    inside = getattr(optimizer, "optimizer", optimizer)
    found: dict[str, Any] = {"lr": engine.get_lr()[0]}
    for place, state in enumerate(inside.state.values()):
        found |= {f"state {place} {name}": _copy(value) for name, value in state.items()}
    for name in MASTERS:
        for place, group in enumerate(getattr(optimizer, name, None) or ()):
            several = group if isinstance(group, list | tuple) else [group]
            found |= {f"{name} {place} {at}": _copy(one) for at, one in enumerate(several)}
    for name, parameter in engine.module.named_parameters():
        found[f"weight {name}"] = _copy(getattr(parameter, "ds_tensor", parameter))
    return found


MASTERS = (
    *("single_partition_of_fp32_groups", "fp32_partitioned_groups_flat"),
    *("fp32_groups_flat", "fp32_groups_flat_partition", "fp32_groups"),
)
"""Where the optimizers of DeepSpeed keep their fp32 weights."""


def _copy(value: Any) -> Any:
    """Return the bits of a tensor: NaN equals NaN, and a process can return them."""
    if not isinstance(value, torch.Tensor):
        return value
    return value.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def weights_of(engine: Any) -> dict[str, Any]:
    """Return the bits of the weights alone."""
    return {name: value for name, value in state_of(engine).items() if name.startswith("weight")}


NAN, HUGE = 20, 130
"""The bad batches; a finite one is discarded once 96 steps are known."""
STEPS = 134


@dataclass(frozen=True, kw_only=True)
class Run:
    """What a run has left on one rank."""

    state: dict[str, Any]
    around: dict[int, tuple[Any, Any]]
    """The state before and after each bad batch."""
    applied: dict[int, bool]
    """Whether the engine says that it has applied them."""
    skipped: int
    """How many it says it has skipped."""
    later_moves: bool
    """Whether the step after the last bad batch has changed the weights."""


def train(rank: int, mode: str | None, folder: Path, stage: int, dtype: str, **options: Any) -> Run:
    """Train with a NaN batch and a huge one, on 2 ranks of only one of them."""
    engine = make_engine(stage, dtype, **options)
    guard = trimtab.watch(engine, run_dir=folder, mode=mode, observer=False) if mode else None
    bad = {NAN: "nan", HUGE: "huge"} if rank == dist.get_world_size() - 1 else {}
    around, applied, later = {}, {}, False
    for number, batch in enumerate(batches(STEPS, dtype, rank, bad)):
        before = state_of(engine) if number in (NAN, HUGE, HUGE + 1) else {}
        for _ in range(engine.gradient_accumulation_steps()):
            engine.backward(loss_of(engine, batch))
            engine.step()
        if number in (NAN, HUGE):
            around[number] = (before, state_of(engine))
            applied[number] = engine.was_step_applied()
        elif before:
            later = before != state_of(engine)
    if guard is not None:
        guard.close()
    return Run(
        state=state_of(engine),
        around=around,
        applied=applied,
        skipped=engine.skipped_steps,
        later_moves=later,
    )


def all_modes(
    rank: int, folder: Path, stage: int, dtype: str, options: Mapping[str, Any] | None = None
) -> dict[str, Run]:
    """Train bare, observed and protected."""
    return {
        str(mode): train(rank, mode, folder / str(mode), stage, dtype, **(options or {}))
        for mode in (None, "observe", "protect")
    }
