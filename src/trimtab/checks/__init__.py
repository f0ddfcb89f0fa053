"""Rules on a run before its first step: on its config, and on its real objects.

rule.py        CheckRule: a function whose parameters are its inputs; `Level`, `Fault`
catalogue.py   every rule by its id; runs them
report.py      CheckReport: what every rule found; view.py prints it
plan.py        TrainingPlan: the settings that rules on configs see, and its learning rate
config_file.py a config of any format -> `ConfigReading`: plan, line numbers, syntax
formats/       one file per format, and the parts that they share
rules/         rules on configs, by family; no torch
objects/       `trimtab.check`: rules on model, optimizer, scheduler, loader and loss
"""

from collections.abc import Iterable, Mapping
from os import PathLike
from typing import Any

from trimtab.checks.catalogue import check_plan
from trimtab.checks.config_file import read_config
from trimtab.checks.report import CheckReport

__all__ = ["CheckReport", "check_config", "read_config"]


def check_config(
    config: str | PathLike[str] | Mapping[str, Any] | object,
    *,
    off: Iterable[str] = (),
    known: Mapping[str, Any] | None = None,
) -> CheckReport:
    """Run every rule on a config: a file, a mapping, or HF's TrainingArguments.

    Args:
        config: What to check.
        off: Ids of rules to skip, such as `TT064`.
        known: Settings by the names of `TrainingPlan`, such as `{"parameters": 7e9}`; they override
            the config.

    Raises UnreadablePlan for a config of no known format, ConfigError for an unknown rule id.
    """
    return check_plan(read_config(config, known), off=off)
