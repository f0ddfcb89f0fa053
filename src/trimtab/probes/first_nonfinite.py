"""first-nonfinite: where the first value that is not finite came from.

Answers:
    "operation"   an operation gave it from finite inputs; `facts` has module and operation
    "weights"     a weight or a buffer is not finite itself
    "finite"      the step is finite when it is done again
"""

import time
from types import TracebackType
from typing import Any, Self

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.hooks import RemovableHandle

from trimtab.probes.passes import Answer, Experiment, Pass, Question, open_answer

MAX_SECONDS = 60.0
"""After this the operations of a step are not looked at any more, and the step ends as always."""

OUTSIDE = "the training loop"
"""Where an operation is that belongs to no module."""


def first_nonfinite(question: Question) -> Experiment:
    """Do the step again and look at each operation."""
    step = question.step
    result = yield Pass(first=step, last=step, finds_nonfinite=True)
    if result.last is None:
        return open_answer(question, "the step was not done again")
    if not result.nonfinite:
        says = "finite" if result.last.is_finite else "open"
        text = f"step {step} is {'finite' if says == 'finite' else 'not finite, and no operation'}"
        return Answer(
            experiment=question.experiment,
            says=says,
            sentence=f"{text} {'when it is done again' if says == 'finite' else 'was seen to be'}",
        )
    found = min(result.nonfinite, key=lambda part: (part["phase"] != "forward", part["rank"]))
    if found["operation"] == "":
        return Answer(
            experiment=question.experiment,
            says="weights",
            sentence=f"{found['module']} is not finite itself before step {step}",
            facts=found,
        )
    kind = f" ({found['type']})" if found.get("type") else ""
    where = f"in the {found['phase']} pass of {found['module']}{kind}"
    rank = f" on rank {found['rank']}" if question.world > 1 else ""
    return Answer(
        experiment=question.experiment,
        says="operation",
        sentence=f"{found['operation']} gives {found['value']} from finite inputs {where}{rank}",
        facts=found,
    )


class NonfiniteFinder(TorchDispatchMode):
    """Looks at the result of each operation until one is not finite although its inputs are.

    It is entered before a step and left after it: forward pass, loss and backward pass are looked
    at wherever the loop computes them.
    """

    def __init__(self, model: nn.Module, found: dict[str, Any]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._model = model
        self._found = found
        self._names = {module: name for name, module in model.named_modules()}
        self._stack: list[nn.Module] = []
        self._ranges: list[tuple[int, int, nn.Module]] = []
        """Numbers of the autograd nodes that each module has made."""
        self._starts: list[int] = []
        self._handles: list[RemovableHandle] = []
        self._ends = time.monotonic() + MAX_SECONDS
        self._is_looking = True

    def __enter__(self) -> Self:
        for name, tensor in (*self._model.named_parameters(), *self._model.named_buffers()):
            if not _is_finite(tensor):
                self._found |= {"module": name, "operation": "", "phase": "forward", "value": ""}
                self._is_looking = False
                break
        for module in self._names:
            self._handles.append(module.register_forward_pre_hook(self._enter_module))
            self._handles.append(module.register_forward_hook(self._leave_module, always_call=True))
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        super().__exit__(kind, error, trace)  # type: ignore[no-untyped-call]
        for handle in self._handles:
            handle.remove()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if self._is_looking:
            try:
                self._look(func, args, kwargs or {}, result)
            except Exception:  # a tensor that cannot be looked at must not end the user's step
                self._is_looking = False
        return result

    def _look(self, func: Any, args: Any, kwargs: Any, result: Any) -> None:
        if time.monotonic() > self._ends:
            self._is_looking = False
            return
        name = func.overloadpacket.__name__
        results = _tensors(result)
        if name in _ON_PURPOSE or all(map(_is_finite, results)):
            return
        inputs = (*_tensors(args), *_tensors(kwargs))
        gives_nan = any(map(_has_nan, results))
        # A mask is -inf on purpose: what makes NaN of it is the operation that went wrong.
        if any(map(_has_nan, inputs)) or not (gives_nan or all(map(_is_finite, inputs))):
            return
        if _is_given(args, kwargs):
            return
        node = torch._C._current_autograd_node()
        module = self._stack[-1] if self._stack else None
        if node is not None:
            module = self._module_of(node._sequence_nr())
        self._found |= {
            "module": OUTSIDE if module is None else self._names[module] or "the model itself",
            "type": "" if module is None else type(module).__name__,
            "operation": name if node is None else f"{node.name()} ({name})",
            "phase": "forward" if node is None else "backward",
            "value": "NaN" if gives_nan else "infinity",
        }
        self._is_looking = False

    def _module_of(self, number: int) -> nn.Module | None:
        """The innermost module that made an autograd node."""
        found = [part for part in self._ranges if part[0] <= number < part[1]]
        return min(found, key=lambda part: part[1] - part[0])[2] if found else None

    def _enter_module(self, module: nn.Module, inputs: Any) -> None:
        self._stack.append(module)
        self._starts.append(torch._C._autograd._get_sequence_nr())

    def _leave_module(self, module: nn.Module, inputs: Any, output: Any) -> None:
        if self._stack and self._stack[-1] is module:
            self._stack.pop()
            first = self._starts.pop()
            self._ranges.append((first, torch._C._autograd._get_sequence_nr(), module))


_ON_PURPOSE = frozenset(
    {
        *("empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "resize_"),
        *("full", "full_like", "fill", "fill_", "scalar_tensor", "lift_fresh", "_to_copy"),
        *("new_full", "triu", "tril", "detach", "view", "copy_", "clone"),
        *("masked_fill", "masked_fill_", "where", "_local_scalar_dense"),
    }
)
"""Operations that hand on or are given values that are not finite: a causal mask is -inf."""


def _is_given(args: Any, kwargs: Any) -> bool:
    """Whether a number that is not finite was given as an argument."""
    numbers = [value for value in (*args, *kwargs.values()) if isinstance(value, float)]
    return any(value != value or value in (float("inf"), float("-inf")) for value in numbers)


def _tensors(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, list | tuple):
        return [tensor for part in value for tensor in _tensors(part)]
    if isinstance(value, dict):
        return [tensor for part in value.values() for tensor in _tensors(part)]
    return []


def _local(tensor: torch.Tensor) -> torch.Tensor:
    local: torch.Tensor = getattr(tensor, "_local_tensor", tensor)
    return local


def _has_nan(tensor: torch.Tensor) -> bool:
    local = _local(tensor)
    return local.is_floating_point() and not local.is_meta and bool(torch.isnan(local).any())


def _is_finite(tensor: torch.Tensor) -> bool:
    local = _local(tensor)
    if not local.is_floating_point() or local.is_meta or not local.numel():
        return True
    return bool(torch.isfinite(local).all())
