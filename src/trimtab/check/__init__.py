"""Check: rules on a training config before the run.

open_config -> own | hf | torchtitan | megatron    any format -> Reading: plan, lines, syntax
plan, curve                                        what rules see; the simulated learning rate
rule -> optimizer, decay, schedule, warmup,
        precision, architecture, operations
     -> catalogue                                  the rules, by family
examine                                            rules on a reading: what is wrong, the fix
"""

from collections.abc import Iterable, Mapping
from os import PathLike
from typing import Any

from trimtab.check.examine import Examination, examine
from trimtab.check.open_config import read_config

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
        off: Ids of rules that are not to be run.
        known: What the config does not say, by the names of `TrainingPlan`; stands above it.

    Raises UnreadablePlan for a config of no known format, ConfigError for an id that is no rule.
    """
    return examine(read_config(config, known), off=off)
