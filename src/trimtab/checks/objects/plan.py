"""The settings that the objects of a run have, so that the rules of `trimtab check` judge them."""

from typing import Any

import numpy as np
import torch

from trimtab.checks.config_reading import ConfigReading, Dialect
from trimtab.checks.curve import MAX_POINTS
from trimtab.checks.objects.inputs import Inputs
from trimtab.checks.objects.measure.simulation import Simulation
from trimtab.checks.plan import Precision, TrainingPlan
from trimtab.live.measure.activations import find_blocks

_PRECISIONS = {
    torch.float32: Precision.FP32,
    torch.bfloat16: Precision.BF16,
    torch.float16: Precision.FP16,
}

PLATEAU = 0.999
"""Share of the peak at which a warm-up has arrived: some schedules only come near their peak."""


def read_objects(inputs: Inputs, simulation: Simulation | None) -> ConfigReading:
    """The plan in the objects; what they do not hold stays unknown.

    Decay of norms and embeddings is left to PF034, which names the parameters.
    """
    main = max(
        ((o, g) for o in inputs.optimizers for g in o.param_groups),
        key=lambda pair: sum(p.numel() for p in pair[1]["params"]),
    )
    optimizer, group = main
    decay = max(
        float(g.get("weight_decay") or 0.0) for o in inputs.optimizers for g in o.param_groups
    )
    betas = group.get("betas") or (None, None)
    name = type(optimizer).__name__.lower()
    is_adam = name in ("adam", "adamw", "nadam")
    settings: dict[str, Any] = {
        "steps": inputs.steps,
        "from_scratch": not inputs.pretrained,
        "optimizer": name,
        "lr": _number(group.get("initial_lr", group.get("lr"))),
        "beta1": _number(betas[0]),
        "beta2": _number(betas[1]),
        "epsilon": _number(group.get("eps")) if is_adam else None,
        "weight_decay": decay,
        "decoupled_decay": _is_decoupled(name, group),
        "clip_norm": inputs.clip_norm,
        "weights": _PRECISIONS.get(group["params"][0].dtype) if group["params"] else None,
        "parameters": float(sum(p.numel() for p in inputs.model.parameters())),
        "layers": len(find_blocks(inputs.model)) or None,
    }
    notes = []
    if simulation is not None and simulation.is_whole:
        place = [id(g) for o in inputs.optimizers for g in o.param_groups].index(id(group))
        settings |= _schedule(simulation, place)
    elif simulation is not None:
        done = len(simulation.rates)
        notes.append(f"the schedule was simulated to step {done:,} of {simulation.steps:,} only")
    return ConfigReading(
        source=type(inputs.model).__name__,
        dialect=Dialect(name=f"{type(optimizer).__name__}, as given", spellings={}),
        plan=TrainingPlan(**settings),
        notes=tuple(notes),
    )


def _schedule(simulation: Simulation, place: int) -> dict[str, Any]:
    rates = simulation.rates[:, place]
    steps = np.linspace(0, len(rates) - 1, min(len(rates), MAX_POINTS)).astype(np.int64)
    peak = float(rates.max())
    return {
        "lr": peak,
        "lr_points": tuple((int(step), float(rates[step])) for step in steps),
        "warmup_steps": int(np.argmax(rates >= PLATEAU * peak)) if peak > 0 else 0,
        "final_lr": float(rates[-1]),
    }


def _is_decoupled(name: str, group: dict[str, Any]) -> bool | None:
    if name == "adamw":
        return True
    return bool(group.get("decoupled_weight_decay")) if name in ("adam", "nadam") else None


def _number(value: Any) -> float | None:
    return None if value is None else float(value)
