"""axolotl: a YAML file of HF's training arguments, some of them under other names.

What the file does not set is left open: axolotl's defaults differ from HF's and depend on the data.
"""

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from trimtab.checks.config_reading import ConfigReading, Dialect
from trimtab.checks.formats import hf

MARKS = frozenset({"base_model"})
"""Names that no other format has."""

_NAMES: Mapping[str, str] = {
    "base_model": "model_name_or_path",
    "lr_scheduler": "lr_scheduler_type",
    "micro_batch_size": "per_device_train_batch_size",
    "num_epochs": "num_train_epochs",
    "optimizer": "optim",
}
"""axolotl's name to HF's."""

_AXOLOTL_NAMES = {other: name for name, other in _NAMES.items()}


def read_axolotl(
    given: Mapping[str, Any],
    *,
    source: str,
    lines: Mapping[str, int] | None = None,
    steps: int | None = None,
) -> ConfigReading:
    """The plan in an axolotl config."""
    arguments = {_NAMES.get(name, name): value for name, value in given.items()}
    for name in ("bf16", "fp16"):
        if arguments.get(name) in ("auto", "full"):
            # auto takes bf16 where the GPU has it, which every GPU for training now does.
            arguments[name] = name == "bf16"
    reading = hf.read_hf(
        arguments,
        source=source,
        lines={_NAMES.get(name, name): line for name, line in (lines or {}).items()},
        dialect=AXOLOTL,
        defaults={},
        steps=steps,
    )
    unset = [field for field, keys in hf.KEYS.items() if not arguments.keys() & set(keys)]
    open_fields: dict[str, Any] = dict.fromkeys(unset)
    if "optim" not in arguments:
        open_fields["optimizer"] = None
    if steps is not None:
        open_fields.pop("steps", None)
    return replace(
        reading,
        plan=replace(reading.plan, **open_fields),
        notes=(*reading.notes, "settings that the file does not have are left open"),
    )


def _write(name: str, value: Any) -> str:
    return f"{_AXOLOTL_NAMES.get(name, name)}: {json.dumps(value)}"


AXOLOTL = Dialect(name="axolotl", spellings=hf.spellings(_write, ", "))
