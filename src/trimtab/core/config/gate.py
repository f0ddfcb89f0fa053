"""How a protected run discards a step."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from trimtab.core.config.section import Section

_MEASURED = "the gate's thresholds are measured constants, in trimtab/live/protect/rule.py"


@dataclass(frozen=True, slots=True, kw_only=True)
class GateConfig(Section):
    """How a step of a protected run is discarded; when it is, is in `live/protect/rule.py`."""

    promote: bool = True
    """Whether Adam, AdamW, SGD and Adagrad are made fused, the form that needs no host read."""

    REMOVED: ClassVar[Mapping[str, str]] = dict.fromkeys(
        (
            "window",
            "min_history",
            "min_history_extreme",
            "norm_ratio",
            "norm_sigmas",
            "norm_explained_by_loss",
            "extreme_norm_ratio",
            "loss_sigmas",
            "loss_excess",
            "odd_norm_ratio",
            "max_consecutive_discards",
            "max_discards",
            "discard_memory_steps",
            "max_scaled",
            "max_extreme_scaled",
            "scale_memory_steps",
        ),
        _MEASURED,
    )
