"""Megatron-LM arguments: a text of `--flag value`, or the launch script that holds them.

What is not in it has Megatron-LM's default.
"""

from typing import Any

from trimtab.checks.formats.reading import ConfigReading, Dialect, Document, FormatTable, Values
from trimtab.checks.formats.syntax import Flags
from trimtab.checks.plan import LossScaling, NormPlace, Precision, TrainingPlan

TABLE = FormatTable.load("megatron")


def read_megatron(flags: Flags, document: Document) -> ConfigReading:
    """Read the plan from Megatron-LM arguments."""
    values = Values(flags.values, document.source, TABLE.defaults)
    open_ended = frozenset(flags.unresolved)
    saving = values.text("save") is not None or "save" in open_ended
    interval = values.whole("save-interval")
    batch = values.whole("global-batch-size")
    fine_tuning = bool(values.truth("finetune"))
    plan = TrainingPlan(
        steps=_steps(values, "train-iters", "train-samples", batch),
        from_scratch=not fine_tuning,
        # Its Adam decouples the decay, whatever its name says.
        optimizer="adamw" if values.text("optimizer") == "adam" else values.text("optimizer"),
        decoupled_decay=True,
        decay_norms=False,
        decay_embeddings="embedding-init-method-std" not in values,
        token_weighted_loss=values.truth("calculate-per-token-loss"),
        **TABLE.read_same(values),
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
        nan_filter=False,
        nan_check=not _any(values, "no-check-for-nan-in-loss-and-grad"),
        eval_steps=values.whole("eval-interval"),
        seeded=True,
    )
    return ConfigReading(
        source=document.source,
        dialect=MEGATRON,
        plan=plan,
        lines=TABLE.find_lines(flags.lines),
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
        "schedule": TABLE.shapes.get(style),
        "warmup_steps": warmup,
        "decay_start": start,
        "decay_end": end,
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
        "vocab_size": values.whole("pad-vocab-size-to"),
        "norm": NormPlace.POST if post else NormPlace.PRE,
        "depth_scaled_init": True,
        "embedding_norm": embedding,
        "qk_norm": _any(values, "qk-layernorm"),
        "experts": values.whole("num-experts"),
        "balance_bias": _any(values, "moe-router-enable-expert-bias"),
    }


def _notes(flags: Flags) -> tuple[str, ...]:
    notes = []
    known = {name for names in TABLE.names.values() for name in names}
    left = sorted(known.intersection(flags.unresolved) - {"save"})
    if left:
        names = ", ".join(f"--{name}" for name in left)
        notes.append(f"not known without running the script: {names}")
    if "rampup-batch-size" in flags.values:
        notes.append("the batch size ramps up; steps are counted at its full size")
    return tuple(notes)


MEGATRON = Dialect(
    name="Megatron-LM arguments",
    spellings=TABLE.spellings(lambda name, value: f"--{name} {value}", " "),
)
