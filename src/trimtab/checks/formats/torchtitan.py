"""torchtitan: its TOML, and the JSON that it saves of its configs.

What is not in it has torchtitan's default. The JSON of 0.3 has the optimizer's settings in
`param_groups`; the first group is used for all.
"""

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

from trimtab.checks.formats.reading import ConfigReading, Dialect, Spelling, Syntax, Values
from trimtab.checks.formats.syntax import flatten
from trimtab.checks.plan import NormPlace, Precision, Shape, TrainingPlan

TABLES = frozenset({"lr_scheduler", "parallelism", "activation_checkpoint", "metrics", "job"})
"""Tables that no other format has beside `training`."""

_GROUP = "optimizer.param_groups.optimizer_kwargs."

_ALIASES: Mapping[str, tuple[str, ...]] = {
    "optimizer.name": ("optimizer.param_groups.optimizer_name",),
    "optimizer.lr": (_GROUP + "lr",),
    "optimizer.eps": (_GROUP + "eps",),
    "optimizer.weight_decay": (_GROUP + "weight_decay",),
    "lr_scheduler.decay_type": ("lr_scheduler.lr_decay_type",),
    "lr_scheduler.min_lr_factor": ("lr_scheduler.lr_min",),
    "checkpoint.enable": ("checkpoint.enable_checkpoint",),
    "debug.seed": ("training.seed",),
    "training.local_batch_size": ("training.batch_size",),
    "model.flavor": ("model_spec.flavor",),
}
"""Names of other versions for the same setting."""

DEFAULTS: Mapping[str, Any] = {
    "optimizer.name": "AdamW",
    "optimizer.lr": 8e-4,
    "optimizer.beta1": 0.9,
    "optimizer.beta2": 0.95,
    "optimizer.eps": 1e-8,
    "optimizer.weight_decay": 0.1,
    "optimizer.implementation": "fused",
    "lr_scheduler.warmup_steps": 200,
    "lr_scheduler.decay_type": "linear",
    "lr_scheduler.min_lr_factor": 0.0,
    "training.steps": 10000,
    "training.seq_len": 2048,
    "training.max_norm": 1.0,
    "training.dtype": "float32",
    "training.mixed_precision_param": "bfloat16",
    "training.mixed_precision_reduce": "float32",
    "metrics.log_freq": 10,
    "checkpoint.enable": False,
    "checkpoint.interval": 500,
    "checkpoint.keep_latest_k": 10,
}

_KEYS: Mapping[str, str] = {
    "decoupled_decay": "optimizer.name",
    "lr": "optimizer.lr",
    "beta1": "optimizer.beta1",
    "beta2": "optimizer.beta2",
    "epsilon": "optimizer.eps",
    "weight_decay": "optimizer.weight_decay",
    "optimizer_state": "optimizer.implementation",
    "warmup_steps": "lr_scheduler.warmup_steps",
    "decay_end": "lr_scheduler.total_steps",
    "schedule": "lr_scheduler.decay_type",
    "final_lr": "lr_scheduler.min_lr_factor",
    "steps": "training.steps",
    "clip_norm": "training.max_norm",
    "batch_size": "training.global_batch_size",
    "seq_len": "training.seq_len",
    "weights": "training.dtype",
    "gradient_sum": "training.mixed_precision_reduce",
    "log_steps": "metrics.log_freq",
    "checkpoint_steps": "checkpoint.interval",
    "keep_checkpoints": "checkpoint.keep_latest_k",
    "seeded": "debug.seed",
    "fp8_output_layer": "float8.filter_fqns",
}

_SHAPES = {"linear": Shape.LINEAR, "cosine": Shape.COSINE, "sqrt": Shape.SQRT}
_TYPES = {"float32": Precision.FP32, "bfloat16": Precision.BF16, "float16": Precision.FP16}
_SIZE = re.compile(r"^(\d+(?:\.\d+)?)([bm])", re.IGNORECASE)


def read_torchtitan(
    tree: Mapping[str, Any],
    *,
    source: str,
    lines: Mapping[str, int] | None = None,
    syntax: Syntax = Syntax.TOML,
) -> ConfigReading:
    """Read the plan from a torchtitan config."""
    given, places = _renamed(flatten(tree)), _renamed(lines or {})
    betas = given.get(_GROUP + "betas")
    if isinstance(betas, list | tuple) and len(betas) == 2:
        given["optimizer.beta1"], given["optimizer.beta2"] = betas
    values = Values(given, source, DEFAULTS)
    lr, steps = values.number("optimizer.lr"), values.whole("training.steps")
    batch = values.whole("training.global_batch_size")
    saves = values.truth("checkpoint.enable")
    adam = values.text("optimizer.name") or ""
    plan = TrainingPlan(
        steps=steps,
        batch_size=batch if batch and batch > 0 else None,
        seq_len=values.whole("training.seq_len"),
        optimizer=adam,
        decoupled_decay=adam != "adam",
        decay_norms=True,  # one group for all parameters
        decay_embeddings=True,
        lr=lr,
        beta1=values.number("optimizer.beta1"),
        beta2=values.number("optimizer.beta2"),
        epsilon=values.number("optimizer.eps"),
        weight_decay=values.number("optimizer.weight_decay"),
        clip_norm=values.number("training.max_norm"),
        token_weighted_loss=True,
        **_schedule(values, steps, lr),
        **_precision(values),
        parameters=_size(values.text("model.flavor")),
        norm=NormPlace.PRE if (values.text("model.name") or "").startswith("llama") else None,
        checkpoint_steps=values.whole("checkpoint.interval") if saves else 0,
        keep_checkpoints=values.whole("checkpoint.keep_latest_k"),
        saves_optimizer=True,
        restores_data=True,
        log_steps=values.whole("metrics.log_freq"),
        nan_filter=False,
        seeded=values.raw("debug.seed") is not None,
    )
    return ConfigReading(
        source=source,
        dialect=DIALECTS[syntax],
        plan=plan,
        lines={field: places[key] for field, key in _KEYS.items() if key in places},
        notes=()
        if plan.batch_size
        else (
            "the batch depends on the number of ranks; give training.global_batch_size to check it",
        ),
    )


def _renamed(flat: Mapping[str, Any]) -> dict[str, Any]:
    """Return the same settings under the names that this file knows."""
    known = dict(flat)
    for name, others in _ALIASES.items():
        for other in others:
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
        "schedule": _SHAPES.get(values.text("lr_scheduler.decay_type") or ""),
        "warmup_steps": warmup,
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


def _spellings(write: Callable[[str, Any], str]) -> Mapping[str, Spelling]:
    def single(key: str) -> Spelling:
        return lambda value: write(key, value)

    same = ("lr", "beta1", "beta2", "epsilon", "weight_decay", "warmup_steps", "decay_end", "steps")
    more = ("clip_norm", "log_steps", "keep_checkpoints", "batch_size", "seq_len")
    return {
        **{field: single(_KEYS[field]) for field in (*same, *more)},
        "decoupled_decay": lambda value: write("optimizer.name", "AdamW"),
        "schedule": lambda value: write("lr_scheduler.decay_type", "cosine"),
        "final_lr": lambda value: write("lr_scheduler.min_lr_factor", 0.1),
        "weights": lambda value: write("training.dtype", "float32"),
        "optimizer_state": lambda value: write("optimizer.implementation", "fused"),
        "gradient_sum": lambda value: write("training.mixed_precision_reduce", "float32"),
        "checkpoint_steps": lambda value: (
            f"{write('checkpoint.enable', True)}, {write('checkpoint.interval', value)}"
        ),
        "seeded": lambda value: write("debug.seed", 42),
        "fp8_output_layer": lambda value: write("float8.filter_fqns", ["output"]),
    }


def _yaml(key: str, value: Any) -> str:
    table, name = key.rsplit(".", 1)
    return f"{table}: {{{name}: {json.dumps(value)}}}"


DIALECTS = {
    syntax: Dialect(name="torchtitan", spellings=_spellings(write))
    for syntax, write in ((Syntax.TOML, _toml), (Syntax.JSON, _json), (Syntax.YAML, _yaml))
}
