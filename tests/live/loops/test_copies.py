"""A watched model can be copied, averaged, saved and scripted; the copy is not watched."""

import copy
import io
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.kit.tiny import batches, loss_of
from tests.kit.user_loop import are_equal, losses, watching, weights
from torch.optim.swa_utils import AveragedModel


def by_average(model: Any) -> Any:
    average = AveragedModel(model)
    average.update_parameters(model)
    return average.module


def by_torch_save(model: Any) -> Any:
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


@pytest.mark.parametrize("make_copy", [copy.deepcopy, by_average, by_torch_save])
@pytest.mark.parametrize("mode", ["observe", "protect"])
def test_a_watched_model_can_be_copied(
    mode: str, make_copy: Callable[[Any], Any], tmp_path: Path
) -> None:
    copies = []
    with watching(tmp_path, mode) as run:

        def keep(step: int) -> None:
            if step == 6:
                copies.append((make_copy(run.model), weights(run.model)))

        run.train(15, before_step=keep)
        twin, expected = copies[0]
        assert are_equal(weights(twin), expected)
        assert all(hook_count(module) == 0 for module in twin.modules())
        loss_of(twin, batches(1)[0]).backward()  # a call of the copy reaches no guard
    assert len(losses(tmp_path)) == 15


def hook_count(module: torch.nn.Module) -> int:
    """Hooks that would do something when the module is called."""
    names = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks")
    return sum(len(hooks) for name, hooks in vars(module).items() if name in names)


def test_a_copied_optimizer_is_not_watched(tmp_path: Path) -> None:
    with watching(tmp_path, "protect") as run:
        run.train(5)
        copy.deepcopy(run.optimizer).step()
        pickle.dumps(run.optimizer)
        run.train(10, skip=range(5))
    assert len(losses(tmp_path)) == 10


class Scriptable(torch.nn.Module):
    """Repeated blocks that TorchScript can compile."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.blocks(x)
        return result


@pytest.mark.xfail(strict=True, reason="AttributeError: the hook has no __name__")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_watched_model_can_be_scripted(tmp_path: Path) -> None:
    model = Scriptable()
    torch.jit.script(Scriptable())
    with watching(tmp_path, model=model):
        scripted = torch.jit.script(model)
    x = torch.randn(2, 4)
    assert torch.equal(scripted(x), model(x))
