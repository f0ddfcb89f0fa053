"""HF TrainingArguments: the JSON of `to_json_string`, an instance, YAML, or flags in a script.

What is not in it has the default of transformers 5.22, because that is what will run. axolotl has
the same arguments in YAML, some of them under other names; what its file does not set is left open,
because its defaults differ from HF's and depend on the data.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from trimtab.checks.formats.reading import (
    ConfigReading,
    Dialect,
    Document,
    FormatTable,
    Syntax,
    Values,
)
from trimtab.checks.plan import LossScaling, Precision, Shape, TrainingPlan
from trimtab.core.errors import UnreadablePlan

TABLE = FormatTable.load("hf")

_PAIR = re.compile(r"([a-z_]+)\W+([\w.+-]+)")


def read_hf(
    given: Mapping[str, Any],
    document: Document,
    *,
    dialect: Dialect | None = None,
    defaults: Mapping[str, Any] = TABLE.defaults,
) -> ConfigReading:
    """Read the plan from training arguments."""
    values = Values(given, document.source, defaults)
    limit = values.whole("max_steps")
    steps = limit if limit is not None and limit > 0 else document.steps
    plan = TrainingPlan(
        steps=steps,
        from_scratch=False if "model_name_or_path" in values or _adapts(values) else None,
        micro_batches=values.whole("gradient_accumulation_steps"),
        optimizer=_optimizer(values),
        decoupled_decay=True,
        decay_norms=False,
        **TABLE.read_same(values),
        **_schedule(values, steps),
        **_precision(values),
        **_fine_tuning(values),
        checkpoint_steps=_cadence(values, "save_strategy", "save_steps", steps),
        keep_checkpoints=values.whole("save_total_limit") or 0,
        saves_optimizer=not values.truth("save_only_model"),
        restores_data=not values.truth("ignore_data_skip"),
        log_steps=_cadence(values, "logging_strategy", "logging_steps", steps),
        eval_steps=_evaluation(values),
        seeded=True,
    )
    return ConfigReading(
        source=document.source,
        dialect=dialect or (HF_YAML if document.syntax is Syntax.YAML else HF_JSON),
        plan=plan,
        lines=TABLE.find_lines(document.lines),
        notes=_notes(values, steps),
    )


def _optimizer(values: Values) -> str:
    name = values.text("optim") or ""
    for family in ("adamw", "adafactor", "lion", "sgd", "adagrad", "rmsprop"):
        if family in name:
            return family
    return name


def _schedule(values: Values, steps: int | None) -> dict[str, Any]:
    name = values.text("lr_scheduler_type") or ""
    extra = values.raw("lr_scheduler_kwargs")
    if isinstance(extra, str):  # on a command line, where its quotes are gone
        extra = dict(_PAIR.findall(extra))
    more = Values(extra if isinstance(extra, Mapping) else {}, "lr_scheduler_kwargs")
    if name == "constant":  # the one schedule that ignores the warm-up
        return {"schedule": Shape.CONSTANT, "warmup_steps": 0}
    lr = values.number("learning_rate") or 0.0
    floor = more.number("min_lr")
    if floor is None:
        floor = lr * (more.number("min_lr_rate") or more.number("min_lr_ratio") or 0.0)
    found: dict[str, Any] = {
        "schedule": TABLE.shapes.get(name),
        "warmup_steps": _warmup(values, steps),
        "decay_end": steps,
        "final_lr": floor,
        "cycles": more.number("num_cycles"),
    }
    if name == "warmup_stable_decay" and steps is not None:
        decay = more.whole("num_decay_steps")
        found["schedule"] = Shape.LINEAR if more.text("decay_type") == "linear" else Shape.COSINE
        found["decay_start"] = steps - decay if decay is not None else None
    return found


def _warmup(values: Values, steps: int | None) -> int | None:
    count = values.number("warmup_steps") or 0.0
    if count >= 1:
        return int(count)
    share = count or values.number("warmup_ratio") or 0.0
    if share == 0:
        return 0
    return None if steps is None else max(round(share * steps), 1)


def _precision(values: Values) -> dict[str, Any]:
    if values.truth("bf16") and values.truth("fp16"):
        raise UnreadablePlan(
            f"{values.source}: fp16 and bf16 are both true, which transformers refuses; set one of "
            "them to false"
        )
    if values.truth("bf16"):
        return {"compute": Precision.BF16}
    if values.truth("fp16"):  # the Trainer always scales the loss then
        return {"compute": Precision.FP16, "loss_scaling": LossScaling.DYNAMIC}
    return {}


def _adapts(values: Values) -> bool:
    """Return whether adapters are trained, as TRL, axolotl and LLaMA-Factory say it."""
    asked = (values.text("adapter") or values.text("finetuning_type") or "").lower()
    return "lora" in asked or bool(values.truth("use_peft"))


def _fine_tuning(values: Values) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if _adapts(values):
        is_plain = not (values.truth("use_rslora") or values.truth("peft_use_rslora"))
        found["lora_rank"] = values.whole("lora_r") or values.whole("lora_rank")
        found["lora_alpha"] = values.number("lora_alpha") if is_plain else None
    elif "float16" in (values.text("dtype"), values.text("torch_dtype")):
        found["weights"] = Precision.FP16  # trained as it was loaded; peft's adapters are in fp32
    if values.truth("sample_packing"):
        ways = ("flash_attention", "sdp_attention", "flex_attention", "xformers_attention")
        is_apart = any(values.truth(name) for name in ways) or "attn_implementation" in values
        found |= {"packing": True, "masks_packed": is_apart}
    elif values.truth("packing") and "finetuning_type" not in values:
        # TRL gives each text positions of its own, from which transformers makes the mask.
        is_wrapped = values.text("packing_strategy") == "wrapped"
        found |= {"packing": True, "masks_packed": not is_wrapped}
    return found


def _cadence(values: Values, strategy: str, count: str, steps: int | None) -> int | None:
    kind, every = values.text(strategy), values.number(count)
    if kind == "no":
        return 0
    if kind != "steps" or every is None:
        return None
    if every >= 1:
        return int(every)
    return None if steps is None else max(round(every * steps), 1)


def _evaluation(values: Values) -> int | None:
    kind = values.text("eval_strategy") or values.text("evaluation_strategy") or "no"
    if kind == "no":
        return 0
    return values.whole("eval_steps") or values.whole("logging_steps") if kind == "steps" else 1


def _notes(values: Values, steps: int | None) -> tuple[str, ...]:
    notes = []
    if steps is None:
        notes.append("the number of steps depends on the data; give it by --set steps=N")
    if values.raw("deepspeed"):
        notes.append("a DeepSpeed config may override these arguments; it was not read")
    return tuple(notes)


def _flag(key: str, value: Any) -> str:
    text = str(value) if isinstance(value, bool | str) else json.dumps(value)
    return f"--{key} '{text}'" if isinstance(value, dict) else f"--{key} {text}"


HF_JSON = Dialect(
    name="HF TrainingArguments",
    spellings=TABLE.spellings(lambda key, value: f'"{key}": {json.dumps(value)},', " "),
)
HF_YAML = Dialect(
    name="HF TrainingArguments",
    spellings=TABLE.spellings(lambda key, value: f"{key}: {json.dumps(value)}", ", "),
)
HF_FLAGS = Dialect(name="HF arguments in a script", spellings=TABLE.spellings(_flag, " "))


AXOLOTL_MARKS = frozenset({"base_model"})
"""Names that no other format has."""

_AXOLOTL_TO_HF: Mapping[str, str] = {
    "base_model": "model_name_or_path",
    "lr_scheduler": "lr_scheduler_type",
    "micro_batch_size": "per_device_train_batch_size",
    "num_epochs": "num_train_epochs",
    "optimizer": "optim",
}
"""axolotl's name to HF's."""

_HF_TO_AXOLOTL = {other: name for name, other in _AXOLOTL_TO_HF.items()}


def read_axolotl(given: Mapping[str, Any], document: Document) -> ConfigReading:
    """Read the plan from an axolotl config."""
    arguments = {_AXOLOTL_TO_HF.get(name, name): value for name, value in given.items()}
    for name in ("bf16", "fp16"):
        if arguments.get(name) in ("auto", "full"):
            # auto takes bf16 where the GPU has it, which every GPU for training now does.
            arguments[name] = name == "bf16"
    lines = {_AXOLOTL_TO_HF.get(name, name): line for name, line in document.lines.items()}
    reading = read_hf(arguments, replace(document, lines=lines), dialect=AXOLOTL, defaults={})
    unset = [field for field, keys in TABLE.names.items() if not arguments.keys() & set(keys)]
    open_fields: dict[str, Any] = dict.fromkeys(unset)
    if "optim" not in arguments:
        open_fields["optimizer"] = None
    if document.steps is not None:
        open_fields.pop("steps", None)
    return replace(
        reading,
        plan=replace(reading.plan, **open_fields),
        notes=(*reading.notes, "settings that the file does not have are left open"),
    )


AXOLOTL = Dialect(
    name="axolotl",
    spellings={
        **TABLE.spellings(lambda k, v: f"{_HF_TO_AXOLOTL.get(k, k)}: {json.dumps(v)}", ", "),
        "masks_packed": lambda value: "flash_attention: true",
    },
)
