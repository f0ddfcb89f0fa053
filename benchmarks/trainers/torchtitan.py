"""torchtitan's own entry point on the CPU, in processes of its own."""

import hashlib
from pathlib import Path
from typing import Any

from tests.kit.torchtitan.launching import launch

from benchmarks.trainers.setting import (
    COUNTED,
    NAN_STEP,
    STEPS,
    Outcome,
    Plan,
    Setting,
    held_steps,
)

PRECISIONS = {"fp32": "float32", "bf16": "bfloat16"}


def train(folder: Path, setting: Setting, plan: Plan) -> list[Outcome]:
    """A run on all ranks."""
    faults = {"nan": NAN_STEP} if plan.has_nan else {}
    found = launch(
        folder,
        plan.mode,
        "--training.global_batch_size",
        str(2 * setting.ranks * setting.accumulate),
        "--training.mixed_precision_param",
        PRECISIONS[setting.precision],
        ranks=setting.ranks,
        faults=faults,
        steps=STEPS,
    )
    return [_outcome(one) for one in found]


def _outcome(found: dict[str, Any]) -> Outcome:
    if "error" in found:
        raise RuntimeError(found["error"])
    seen = [one["weights"] + one["moments"] for one in found["steps"]]
    end = f"{seen[-1]} {found['step']} {found['tokens']}"
    return Outcome(
        bits=hashlib.sha256(end.encode()).hexdigest(),
        held=held_steps(seen),
        num_steps=len(seen),
        reads=sum(found["steps"][number]["reads"] for number in COUNTED),
    )
