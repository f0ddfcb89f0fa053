"""Megatron-LM arguments: a text of `--flag value`, or the launch script that holds them.

What is not in it has Megatron-LM's default.
"""

from collections.abc import Mapping
from typing import Any

from trimtab.checks.formats.reading import (
    ConfigReading,
    Dialect,
    Spelling,
    Values,
    field_lines,
)
from trimtab.checks.formats.syntax import Flags
from trimtab.checks.plan import LossScaling, NormPlace, Precision, Shape, TrainingPlan

MARKS = frozenset({"num-layers", "micro-batch-size", "lr-decay-style", "clip-grad", "train-iters"})
"""Names that no other format has."""

DEFAULTS: Mapping[str, Any] = {
    "optimizer": "adam",
    "adam-beta1": 0.9,
    "adam-beta2": 0.999,
    "adam-eps": 1e-8,
    "weight-decay": 0.01,
    "clip-grad": 1.0,
    "lr-decay-style": "linear",
    "lr-wsd-decay-style": "exponential",
    "min-lr": 0.0,
    "init-method-std": 0.02,
    "min-loss-scale": 1.0,
    "log-interval": 100,
    "eval-interval": 1000,
    "fp8-recipe": "delayed",
    "fp8-amax-history-len": 1,
    "moe-aux-loss-coeff": 0.0,
    "num-experts": 0,
}

_SHAPES = {
    "constant": Shape.CONSTANT,
    "linear": Shape.LINEAR,
    "cosine": Shape.COSINE,
    "inverse-square-root": Shape.INVERSE_SQRT,
    "exponential": Shape.EXPONENTIAL,
    "minus_sqrt": Shape.SQRT,
}

_KEYS: Mapping[str, tuple[str, ...]] = {
    "lr": ("lr",),
    "beta1": ("adam-beta1",),
    "beta2": ("adam-beta2",),
    "epsilon": ("adam-eps",),
    "weight_decay": ("weight-decay",),
    "clip_norm": ("clip-grad",),
    "steps": ("train-iters", "train-samples"),
    "batch_size": ("global-batch-size",),
    "seq_len": ("seq-length",),
    "schedule": ("lr-decay-style",),
    "warmup_steps": ("lr-warmup-iters", "lr-warmup-samples", "lr-warmup-fraction"),
    "decay_end": ("lr-decay-iters", "lr-decay-samples"),
    "final_lr": ("min-lr",),
    "compute": ("fp16", "bf16", "fp8-format"),
    "loss_scaling": ("loss-scale",),
    "min_loss_scale": ("min-loss-scale",),
    "gradient_sum": ("grad-reduce-in-bf16",),
    "cross_entropy_fp32": ("fp16-lm-cross-entropy",),
    "optimizer_state": ("exp-avg-sq-dtype",),
    "fp8_format": ("fp8-format",),
    "fp8_history": ("fp8-amax-history-len",),
    "layers": ("num-layers",),
    "width": ("hidden-size",),
    "init_std": ("init-method-std",),
    "norm": ("apply-residual-connection-post-layernorm",),
    "qk_norm": ("qk-layernorm",),
    "balance_loss": ("moe-aux-loss-coeff",),
    "checkpoint_steps": ("save-interval", "save"),
    "saves_optimizer": ("no-save-optim", "no-load-optim"),
    "saves_rng": ("no-save-rng", "no-load-rng"),
    "log_steps": ("log-interval",),
    "nan_check": ("no-check-for-nan-in-loss-and-grad",),
}
"""Field of the plan to the flags that set it; the line of the first one found is shown."""


def read_megatron(flags: Flags, *, source: str) -> ConfigReading:
    """Read the plan from Megatron-LM arguments."""
    values = Values(flags.values, source, DEFAULTS)
    open_ended = frozenset(flags.unresolved)
    saving = values.text("save") is not None or "save" in open_ended
    interval = values.whole("save-interval")
    batch = values.whole("global-batch-size")
    fine_tuning = bool(values.truth("finetune"))
    plan = TrainingPlan(
        steps=_steps(values, "train-iters", "train-samples", batch),
        from_scratch=not fine_tuning,
        batch_size=batch,
        seq_len=values.whole("seq-length"),
        # Its Adam decouples the decay, whatever its name says.
        optimizer="adamw" if values.text("optimizer") == "adam" else values.text("optimizer"),
        decoupled_decay=True,
        decay_norms=False,
        decay_embeddings="embedding-init-method-std" not in values,
        lr=values.number("lr"),
        beta1=values.number("adam-beta1"),
        beta2=values.number("adam-beta2"),
        epsilon=values.number("adam-eps"),
        weight_decay=values.number("weight-decay"),
        clip_norm=values.number("clip-grad"),
        token_weighted_loss=values.truth("calculate-per-token-loss"),
        **_schedule(values, batch),
        **_precision(values),
        **_model(values),
        checkpoint_steps=(
            None if "save-interval" in open_ended else (interval or 0) if saving else 0
        ),
        keep_checkpoints=None if "save-retain-interval" in values else 0,
        saves_optimizer=not _any(
            values, "no-save-optim", *(() if fine_tuning else ("no-load-optim",))
        ),
        saves_rng=not _any(values, "no-save-rng", *(() if fine_tuning else ("no-load-rng",))),
        restores_data=True,
        log_steps=values.whole("log-interval"),
        nan_filter=False,
        nan_check=not _any(values, "no-check-for-nan-in-loss-and-grad"),
        eval_steps=values.whole("eval-interval"),
        seeded=True,
    )
    return ConfigReading(
        source=source,
        dialect=MEGATRON,
        plan=plan,
        lines=field_lines(_KEYS, flags.lines),
        notes=_notes(flags),
    )


def _any(values: Values, *names: str) -> bool:
    return any(values.truth(name) for name in names)


def _steps(values: Values, steps: str, samples: str, batch: int | None) -> int | None:
    """Return a duration in steps; it may be given in steps or in samples."""
    found = values.whole(steps)
    if found is not None:
        return found
    count = values.whole(samples)
    return None if count is None or not batch else count // batch


def _schedule(values: Values, batch: int | None) -> dict[str, Any]:
    steps = _steps(values, "train-iters", "train-samples", batch)
    end = _steps(values, "lr-decay-iters", "lr-decay-samples", batch)
    end = steps if end is None else end
    share = values.number("lr-warmup-fraction")
    if share is not None:
        warmup = None if end is None else round(share * end)
    else:
        warmup = _steps(values, "lr-warmup-iters", "lr-warmup-samples", batch)
        if warmup is None and "lr-warmup-samples" not in values:
            warmup = 0
    style = values.text("lr-decay-style") or ""
    start = None
    if style == "wsd":
        style = values.text("lr-wsd-decay-style") or ""
        length = _steps(values, "lr-wsd-decay-iters", "lr-wsd-decay-samples", batch)
        start = None if length is None or end is None else end - length
    return {
        "schedule": _SHAPES.get(style),
        "warmup_steps": warmup,
        "decay_start": start,
        "decay_end": end,
        "final_lr": values.number("min-lr"),
    }


def _precision(values: Values) -> dict[str, Any]:
    found: dict[str, Any] = {"weights": Precision.FP32, "gradient_sum": Precision.FP32}
    if values.truth("bf16"):
        found["compute"] = Precision.BF16
    if values.truth("fp16"):
        scale = values.number("loss-scale")
        found["compute"] = Precision.FP16
        found["loss_scaling"] = (
            LossScaling.DYNAMIC
            if scale is None
            else LossScaling.NONE
            if scale == 1
            else LossScaling.STATIC
        )
        found["min_loss_scale"] = values.number("min-loss-scale")
    if values.text("fp8-format"):
        found["compute"] = Precision.FP8
        found["fp8_format"] = values.text("fp8-format")
        found["fp8_scaling"] = values.text("fp8-recipe")
        found["fp8_history"] = values.whole("fp8-amax-history-len")
    if values.truth("grad-reduce-in-bf16"):
        found["gradient_sum"] = Precision.BF16
    if values.truth("attention-softmax-in-fp32"):
        found["softmax_fp32"] = True
    found["cross_entropy_fp32"] = not values.truth("fp16-lm-cross-entropy")
    kept = values.text("exp-avg-sq-dtype")
    found["optimizer_state"] = {"bf16": Precision.BF16, "fp16": Precision.FP16}.get(
        kept or "", Precision.FP32
    )
    return found


def _model(values: Values) -> dict[str, Any]:
    post = values.truth("apply-residual-connection-post-layernorm")
    embedding = _any(values, "embed-layernorm") or (
        (values.number("embedding-init-method-std") or 0.0) >= 0.5
    )
    return {
        "layers": values.whole("num-layers"),
        "width": values.whole("hidden-size"),
        "vocab_size": values.whole("pad-vocab-size-to"),
        "norm": NormPlace.POST if post else NormPlace.PRE,
        "init_std": values.number("init-method-std"),
        "depth_scaled_init": True,
        "embedding_norm": embedding,
        "qk_norm": _any(values, "qk-layernorm"),
        "experts": values.whole("num-experts"),
        "balance_loss": values.number("moe-aux-loss-coeff"),
        "balance_bias": _any(values, "moe-router-enable-expert-bias"),
    }


def _notes(flags: Flags) -> tuple[str, ...]:
    notes = []
    known = {name for names in _KEYS.values() for name in names}
    left = sorted(known.intersection(flags.unresolved) - {"save"})
    if left:
        names = ", ".join(f"--{name}" for name in left)
        notes.append(f"not known without running the script: {names}")
    if "rampup-batch-size" in flags.values:
        notes.append("the batch size ramps up; steps are counted at its full size")
    return tuple(notes)


def _flag(name: str) -> Spelling:
    return lambda value: f"--{name} {value}"


def _spellings() -> Mapping[str, Spelling]:
    same = ("lr", "beta1", "beta2", "epsilon", "weight_decay", "clip_norm", "steps", "batch_size")
    more = ("seq_len", "warmup_steps", "decay_end", "final_lr", "min_loss_scale", "fp8_format")
    last = ("fp8_history", "init_std", "balance_loss", "checkpoint_steps", "log_steps", "layers")
    return {
        **{field: _flag(_KEYS[field][0]) for field in (*same, *more, *last)},
        "schedule": lambda value: "--lr-decay-style cosine",
        "compute": lambda value: "--bf16",
        "loss_scaling": lambda value: "remove --loss-scale",
        "gradient_sum": lambda value: "remove --grad-reduce-in-bf16",
        "cross_entropy_fp32": lambda value: "remove --fp16-lm-cross-entropy",
        "optimizer_state": lambda value: "--exp-avg-sq-dtype fp32",
        "softmax_fp32": lambda value: "--attention-softmax-in-fp32",
        "norm": lambda value: "remove --apply-residual-connection-post-layernorm",
        "qk_norm": lambda value: "--qk-layernorm",
        "embedding_norm": lambda value: "--embedding-init-method-std 1.0",
        "decay_embeddings": lambda value: "--embedding-init-method-std 1.0",
        "saves_optimizer": lambda value: "remove --no-save-optim and --no-load-optim",
        "saves_rng": lambda value: "remove --no-save-rng and --no-load-rng",
        "nan_check": lambda value: "remove --no-check-for-nan-in-loss-and-grad",
    }


MEGATRON = Dialect(name="Megatron-LM arguments", spellings=_spellings())
