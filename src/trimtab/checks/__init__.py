"""Rules on a training config, run before the training.

`config_file`     a config of any format -> `ConfigReading`: plan, line numbers, syntax
`formats/`        one file per format, and the parts that they share
`plan`, `curve`   what the rules see; the simulated learning rate
`rule`, `rules/`  one function per rule, by family; `catalogue` collects them
`examine`         runs the rules: what is wrong and how to fix it; `rollback` costs a rollback
"""

from collections.abc import Iterable, Mapping
from os import PathLike
from typing import Any

from trimtab.checks.config_file import read_config
from trimtab.checks.examine import Examination, examine

__all__ = ["Examination", "check_config", "examine", "read_config"]


def check_config(
    config: str | PathLike[str] | Mapping[str, Any] | object,
    *,
    off: Iterable[str] = (),
    known: Mapping[str, Any] | None = None,
) -> Examination:
    """Run every rule on a config: a file, a mapping, or HF's TrainingArguments.

    Args:
        config: What to check.
        off: Ids of rules to skip.
        known: Settings by the names of `TrainingPlan`; they override the config.

    Raises UnreadablePlan for a config of no known format, ConfigError for an unknown rule id.
    """
    return examine(read_config(config, known), off=off)
