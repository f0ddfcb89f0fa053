"""NaN planted in a module by an operation, for one batch: are both named?"""

from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from trimtab.core.causes import Cause
from trimtab.lab.trainer.checkpoints import LabRun
from trimtab.lab.trainer.intervention import Intervention, RunParts, current_step
from trimtab.lab.trainer.run_clock import Clock

_Operation = Callable[[Tensor], Tensor]

OPERATIONS: dict[str, tuple[_Operation, str]] = {
    "log": (lambda x: (x * 0).log(), "log"),
    "div": (lambda x: (x * 0) / (x * 0), "div"),
    "sqrt": (lambda x: (x * 0 - 1).sqrt(), "sqrt"),
    "full mask": (
        lambda x: x.masked_fill(torch.ones_like(x, dtype=torch.bool), float("-inf")).softmax(-1),
        "_softmax",
    ),
    "exp": (lambda x: (x * 0 + 1000).exp(), "exp"),
    "backward of sqrt": (lambda x: (x * 0).abs().sqrt(), "SqrtBackward0"),
}
"""What is computed, and the operation that a report must name."""

PLACES = tuple(
    (module, operation)
    for module, operation in (
        ("embed", "log"),
        ("blocks.0", "div"),
        ("blocks.0.norm_attention", "sqrt"),
        ("blocks.0.attention", "full mask"),
        ("blocks.0.mlp", "exp"),
        ("blocks.0.mlp.gate", "log"),
        ("blocks.0.mlp.up", "div"),
        ("blocks.0.mlp.down", "sqrt"),
        ("blocks.0.norm_mlp", "full mask"),
        ("blocks.1", "exp"),
        ("blocks.1.attention", "log"),
        ("blocks.1.norm_attention", "div"),
        ("blocks.1.norm_mlp", "sqrt"),
        ("blocks.1.mlp", "full mask"),
        ("blocks.1.mlp.gate", "exp"),
        ("norm", "log"),
        ("norm", "backward of sqrt"),
        ("blocks.0.mlp", "backward of sqrt"),
        ("blocks.1.mlp.up", "backward of sqrt"),
        ("blocks.1.attention", "backward of sqrt"),
    )
)


class PlantedNan(Intervention):
    """One batch makes an operation in one module give NaN."""

    cause: ClassVar[Cause | None] = Cause.LOGIC_NAN
    clock = Clock.DATA
    title = "NaN in a module"
    strength_name = "batches"
    module = ""
    operation = ""

    @property
    def steps(self) -> int:
        """One batch."""
        return 1

    def attach(self, parts: RunParts) -> LabRun:
        """Add what the operation gives to the output of the module."""
        run, make = parts.run, OPERATIONS[self.operation][0]

        def hook(module: nn.Module, inputs: Any, output: Any) -> Any:
            if not (self.covers(current_step(run)) and torch.is_grad_enabled()):
                return output
            if isinstance(output, tuple):
                return (output[0] + make(output[0]), *output[1:])
            return output + make(output)

        run.model.get_submodule(self.module).register_forward_hook(hook)
        self.truth |= {"module": self.module, "operation": self.operation}
        return run


def planted(module: str, operation: str, onset: int, seed: int) -> PlantedNan:
    """The intervention for one place."""
    made = PlantedNan(onset=onset, severity=0.0, seed=seed)
    made.module, made.operation = module, operation
    return made


def is_right(answer: dict[str, Any], module: str, operation: str) -> bool:
    """Whether module and operation are the planted ones."""
    facts = answer.get("facts") or {}
    wanted = OPERATIONS[operation][1]
    return facts.get("module") == module and wanted in str(facts.get("operation"))
