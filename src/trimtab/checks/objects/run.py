"""preflight(): run every check on the real objects of a run, and put the objects back."""

import time
from collections.abc import Iterable
from typing import Any

from torch import nn

from trimtab.checks.examine import Examination, examine
from trimtab.checks.objects.catalogue import CHECKS, split_ids
from trimtab.checks.objects.definition import NotMeasured, PreflightCheck
from trimtab.checks.objects.inputs import Inputs, Loss, model_loss
from trimtab.checks.objects.measure.kept_state import KeptState
from trimtab.checks.objects.measure.measurements import Measurements
from trimtab.checks.objects.measure.ranks import meet
from trimtab.checks.objects.plan import read_objects
from trimtab.checks.objects.report import CheckResult, PreflightReport


def preflight(
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
) -> PreflightReport:
    """Check the real objects of a run before its first step.

    Nothing is changed: parameters, buffers, gradients, optimizer, scheduler, random numbers, modes,
    hooks and the position of a loader with state are put back and compared bit by bit. With several
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
        off: Ids of checks (PF...) and rules (TT...) to leave out.
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
    checks_off, rules_off = split_ids(off)
    kept = KeptState(inputs)
    before = kept.digest()
    measurements = Measurements(inputs, kept)
    try:
        chosen = [check for check in CHECKS.values() if check.id not in checks_off]
        results = []
        for check in chosen:
            results.append(_run(check, measurements))
            meet(check.id)
        rules = _run_rules(inputs, measurements, rules_off)
    finally:
        kept.put()
    after = kept.digest()
    return PreflightReport(
        subject=_describe(inputs),
        results=tuple(results),
        rules=rules,
        changed=tuple(name for name, value in before.items() if after[name] != value),
        off=tuple(sorted(checks_off | rules_off)),
        seconds=time.monotonic() - began,
    )


def _run(check: PreflightCheck, measurements: Measurements) -> CheckResult:
    """Run one check; an error in it is its own result."""
    try:
        given = {name: getattr(measurements, name) for name in check.needs}
        return CheckResult(check=check, seen=check.run(**given))
    except NotMeasured as reason:
        return CheckResult(check=check, seen=None, reason=str(reason))
    except Exception as error:
        reason_text = f"{type(error).__name__}: {error}"
        return CheckResult(check=check, seen=None, reason=reason_text, is_broken=True)


def _run_rules(
    inputs: Inputs, measurements: Measurements, off: Iterable[str]
) -> Examination | None:
    """The rules of `trimtab check` on the settings that the objects have."""
    try:
        simulation = measurements.simulation
    except Exception:  # its check says why
        simulation = None
    try:
        return examine(read_objects(inputs, simulation), off=off)
    except Exception:  # settings that no plan can hold; the checks stand by themselves
        return None


def _describe(inputs: Inputs) -> str:
    count = sum(parameter.numel() for parameter in inputs.model.parameters())
    names = ", ".join(type(optimizer).__name__ for optimizer in inputs.optimizers)
    return f"{type(inputs.model).__name__}, {count:,} parameters, {names}"
