"""torchtitan: its TOML, and the JSON that it saves of its configs.

What is not in it has torchtitan's default. The JSON of 0.3 has the optimizer's settings in
`param_groups`; the first group is used for all.
"""

import json
import re
from collections.abc import Mapping
from typing import Any

from trimtab.checks.formats.reading import (
    ConfigReading,
    Dialect,
    Document,
    FormatTable,
    Syntax,
    Values,
)
from trimtab.checks.formats.syntax import flatten
from trimtab.checks.plan import NormPlace, Precision, TrainingPlan

TABLE = FormatTable.load("torchtitan")

_TYPES = {"float32": Precision.FP32, "bfloat16": Precision.BF16, "float16": Precision.FP16}
_SIZE = re.compile(r"^(\d+(?:\.\d+)?)([bm])", re.IGNORECASE)


def read_torchtitan(tree: Mapping[str, Any], document: Document) -> ConfigReading:
    """Read the plan from a torchtitan config."""
    given = _renamed(flatten(tree))
    betas = given.get("optimizer.param_groups.optimizer_kwargs.betas")
    if isinstance(betas, list | tuple) and len(betas) == 2:
        given["optimizer.beta1"], given["optimizer.beta2"] = betas
    values = Values(given, document.source, TABLE.defaults)
    lr, steps = values.number("optimizer.lr"), values.whole("training.steps")
    batch = values.whole("training.global_batch_size")
    saves = values.truth("checkpoint.enable")
    adam = values.text("optimizer.name") or ""
    plan = TrainingPlan(
        batch_size=batch if batch and batch > 0 else None,
        optimizer=adam,
        decoupled_decay=adam != "adam",
        decay_norms=True,  # one group for all parameters
        decay_embeddings=True,
        token_weighted_loss=True,
        **TABLE.read_same(values),
        **_schedule(values, steps, lr),
        **_precision(values),
        parameters=_size(values.text("model.flavor")),
        norm=NormPlace.PRE if (values.text("model.name") or "").startswith("llama") else None,
        checkpoint_steps=values.whole("checkpoint.interval") if saves else 0,
        saves_optimizer=True,
        restores_data=True,
        nan_filter=False,
        seeded=values.raw("debug.seed") is not None,
    )
    note = "the batch depends on the number of ranks; give training.global_batch_size to check it"
    return ConfigReading(
        source=document.source,
        dialect=DIALECTS[document.syntax],
        plan=plan,
        lines=TABLE.find_lines(_renamed(document.lines)),
        notes=() if plan.batch_size else (note,),
    )


def _renamed(flat: Mapping[str, Any]) -> dict[str, Any]:
    """Return the same settings under the names that this file knows."""
    known = dict(flat)
    for name, other in TABLE.aliases.items():
        if name not in known and other in flat:
            known[name] = flat[other]
    return known


def _schedule(values: Values, steps: int | None, lr: float | None) -> dict[str, Any]:
    total = values.whole("lr_scheduler.total_steps")
    end = steps if total is None else total
    warmup = values.whole("lr_scheduler.warmup_steps")
    ratio = values.number("lr_scheduler.decay_ratio")
    start = None
    if ratio is not None and end is not None:
        start = max(end - round(end * ratio), warmup or 0)
    floor = (lr or 0.0) * (values.number("lr_scheduler.min_lr_factor") or 0.0)
    return {
        "schedule": TABLE.shapes.get(values.text("lr_scheduler.decay_type") or ""),
        "decay_start": start,
        "decay_end": end,
        "final_lr": floor,
        "holds_after_decay": False,  # measured: torchtitan 0.3.0 continues the formula
    }


def _precision(values: Values) -> dict[str, Any]:
    weights = _TYPES.get(values.text("training.dtype") or "")
    compute = _TYPES.get(values.text("training.mixed_precision_param") or "")
    found: dict[str, Any] = {
        "weights": weights,
        "compute": weights if weights is Precision.BF16 else compute,
        "gradient_sum": _TYPES.get(values.text("training.mixed_precision_reduce") or ""),
        "cross_entropy_fp32": True,
    }
    if weights is Precision.BF16 or "bf16" in (values.text("optimizer.implementation") or ""):
        found["optimizer_state"] = Precision.BF16
    else:
        found["optimizer_state"] = Precision.FP32
    if "float8" in (values.text("model.converters") or ""):
        kept = values.text("float8.filter_fqns") or values.text(
            "quantize.linear.float8.filter_fqns"
        )
        found["compute"] = Precision.FP8
        found["fp8_output_layer"] = "output" not in (kept or "") and "lm_head" not in (kept or "")
    return found


def _size(flavor: str | None) -> float | None:
    """Return the parameters of a flavour such as 8B; None for one that names no size."""
    found = _SIZE.match(flavor or "")
    return float(found[1]) * (1e9 if found[2] in "bB" else 1e6) if found else None


def _toml(key: str, value: Any) -> str:
    table, name = key.rsplit(".", 1)
    text = str(value).lower() if isinstance(value, bool) else repr(value).replace("'", '"')
    return f"[{table}] {name} = {text}"


def _json(key: str, value: Any) -> str:
    table, name = key.rsplit(".", 1)
    return f'"{table}": {{"{name}": {json.dumps(value)}}}'


def _yaml(key: str, value: Any) -> str:
    table, name = key.rsplit(".", 1)
    return f"{table}: {{{name}: {json.dumps(value)}}}"


DIALECTS = {
    syntax: Dialect(name="torchtitan", spellings=TABLE.spellings(write, ", "))
    for syntax, write in ((Syntax.TOML, _toml), (Syntax.JSON, _json), (Syntax.YAML, _yaml))
}
