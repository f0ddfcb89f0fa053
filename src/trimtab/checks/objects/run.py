"""check(): run every rule on the real objects of a run, and restore the objects."""

import time
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import torch
from torch import nn

from trimtab.checks.catalogue import check_plan, object_rules, rule_ids, run_rule
from trimtab.checks.formats.reading import ConfigReading, Dialect
from trimtab.checks.objects.inputs import Inputs, Loss, model_loss
from trimtab.checks.objects.measure.kept_state import KeptState
from trimtab.checks.objects.measure.measurements import Measurements
from trimtab.checks.objects.measure.ranks import wait_for_ranks
from trimtab.checks.objects.measure.training import Simulation
from trimtab.checks.plan import MAX_POINTS, Precision, TrainingPlan
from trimtab.checks.report import CheckReport, RuleResult
from trimtab.checks.rule import CheckRule
from trimtab.live.measure.sites import find_blocks

_PRECISIONS = {
    torch.float32: Precision.FP32,
    torch.bfloat16: Precision.BF16,
    torch.float16: Precision.FP16,
}

PLATEAU = 0.999
"""Share of the peak at which a warm-up has arrived: some schedules only come near their peak."""


def check(
    model: nn.Module,
    optimizer: Any,
    *,
    scheduler: Any = None,
    loader: Any = None,
    loss: Loss | None = None,
    steps: int | None = None,
    clip_norm: float | None = None,
    pretrained: bool = False,
    off: Iterable[str] = (),
) -> CheckReport:
    """Check the real objects of a run before its first step.

    Nothing is changed: parameters, buffers, gradients, optimizer, scheduler, random numbers, modes,
    hooks and the position of a loader with state are restored and compared bit by bit. With several
    ranks, call it on all of them.

    Args:
        model: The model, on its device, with the weights that the run starts from.
        optimizer: One optimizer, a wrapper of one, or several.
        scheduler: The learning-rate scheduler, or several.
        loader: What the training loop iterates over.
        loss: Takes the model and a batch, returns the loss; `model(batch).loss` by default.
        steps: Optimizer updates of the whole run.
        clip_norm: The gradient norm at which the loop clips.
        pretrained: Whether the weights are trained already; rules on a fresh init are left out.
        off: Ids of rules to leave out, on objects (PF...) and on settings (TT...).
    """
    began = time.monotonic()
    inputs = Inputs(
        model,
        optimizer,
        scheduler=scheduler,
        loader=loader,
        loss=loss or model_loss,
        steps=steps,
        clip_norm=clip_norm,
        pretrained=pretrained,
    )
    skipped = rule_ids(off)
    kept = KeptState(inputs)
    before = kept.digest()
    measurements = Measurements(inputs, kept)
    results: list[RuleResult] = []
    try:
        for rule in object_rules().values():
            if rule.id not in skipped:
                results.append(_run(rule, measurements))
                # A rule may fail on one rank alone, which must not run ahead into the next one.
                wait_for_ranks(rule.id)
        settings = _check_settings(inputs, measurements, skipped)
    finally:
        kept.restore()
    after = kept.digest()
    if settings is not None:
        # Rules on settings that no object holds, such as the time between checkpoints, say nothing.
        results += [result for result in settings.results if result.has_run]
    return CheckReport(
        source=_describe(inputs),
        format="objects",
        notes=("no rule on settings could read these objects",)
        if settings is None
        else settings.notes,
        plan=TrainingPlan() if settings is None else settings.plan,
        results=tuple(results),
        off=tuple(sorted(skipped)),
        changed=tuple(name for name, value in before.items() if after[name] != value),
        seconds=time.monotonic() - began,
    )


def _run(rule: CheckRule, measurements: Measurements) -> RuleResult:
    """Run one rule; an error in it is its own result."""
    try:
        return run_rule(rule, measurements)
    except Exception as error:  # the user's code, or objects that we do not understand
        reason = f"{type(error).__name__}: {error}"
        return RuleResult(rule=rule, reason=reason, is_broken=True)


def _check_settings(
    inputs: Inputs, measurements: Measurements, off: Iterable[str]
) -> CheckReport | None:
    """Run the rules on configs on the settings that the objects have."""
    try:
        simulation = measurements.simulation
    except Exception:  # its rule says why
        simulation = None
    try:
        return check_plan(read_objects(inputs, simulation), off=off)
    except Exception:  # settings that no plan can hold; the other rules stand by themselves
        return None


def _describe(inputs: Inputs) -> str:
    count = sum(parameter.numel() for parameter in inputs.model.parameters())
    names = ", ".join(type(optimizer).__name__ for optimizer in inputs.optimizers)
    return f"{type(inputs.model).__name__}, {count:,} parameters, {names}"


def read_objects(inputs: Inputs, simulation: Simulation | None) -> ConfigReading:
    """Read the plan from the objects; what they do not hold stays unknown.

    Decay of norms and embeddings is left to PF034, which names the parameters.
    """
    # Groups may have different options; those of most parameters stand for the run.
    main = max(
        ((o, g) for o in inputs.optimizers for g in o.param_groups),
        key=lambda pair: sum(p.numel() for p in pair[1]["params"]),
    )
    optimizer, group = main
    decay = max(float(g.get("weight_decay") or 0.0) for g in inputs.groups)
    betas = group.get("betas") or (None, None)
    name = type(optimizer).__name__.lower()
    is_adam = name in ("adam", "adamw", "nadam")
    adapter = _adapter(inputs.model)
    settings: dict[str, Any] = {
        "steps": inputs.steps,
        "from_scratch": not (inputs.pretrained or adapter),
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
        **dict(zip(("lora_rank", "lora_alpha"), adapter, strict=False)),
    }
    notes = []
    if simulation is not None and simulation.is_whole:
        place = [id(g) for g in inputs.groups].index(id(group))
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


def _adapter(model: nn.Module) -> tuple[int, float] | tuple[()]:
    """Return rank and alpha of the LoRA layer that is scaled most, as peft and loralib have it."""
    found: list[tuple[int, float]] = []
    for module in model.modules():
        ranks, scales = getattr(module, "r", None), getattr(module, "scaling", None)
        if not isinstance(ranks, Mapping):  # peft has several adapters, by name
            ranks, scales = {"": ranks}, {"": scales}
        for name, rank in ranks.items():
            scale = scales.get(name) if isinstance(scales, Mapping) else None
            if isinstance(rank, int) and rank > 0 and isinstance(scale, int | float):
                found.append((rank, scale * rank))
    return max(found, key=lambda pair: pair[1] / pair[0], default=())


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
