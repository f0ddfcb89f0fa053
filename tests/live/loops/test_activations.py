"""Activations: which modules are the blocks, and what they return."""

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.kit.tiny import WIDTH, Tiny, TinyBlock, journal_of, make_model
from tests.kit.user_loop import warnings_of, watching
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx


class DictBlock(TinyBlock):
    def forward(self, x: torch.Tensor) -> Any:
        return {"hidden": super().forward(x)}


class DictModel(Tiny):
    """Blocks that return a dict, as those of some libraries do."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(DictBlock() for _ in range(2))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x)["hidden"]
        logits: torch.Tensor = self.head(x)
        return logits


def test_blocks_that_return_a_dict_are_not_taken_for_compiled(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with watching(tmp_path, model=DictModel()) as run:
        run.train(15)
    assert not [sentence for sentence in warnings_of(caplog) if "compile" in sentence]


class ExpertLayer(nn.Module):
    """A layer of more experts than the model has layers."""

    def __init__(self) -> None:
        super().__init__()
        self.experts = nn.ModuleList(TinyBlock() for _ in range(5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.stack([expert(x) for expert in self.experts]).mean(dim=0)


def test_the_layers_are_the_blocks_and_not_the_experts_of_one(tmp_path: Path) -> None:
    model = Tiny()
    model.blocks = nn.ModuleList(ExpertLayer() for _ in range(3))
    with watching(tmp_path, model=model) as run:
        run.train(12)
    names = {name for name in journal_of(tmp_path).columns if name.startswith("activation_rms/")}
    assert names == {f"activation_rms/blocks.{number}" for number in range(3)}


def test_a_forward_of_something_else_is_in_no_activation(tmp_path: Path) -> None:
    with watching(tmp_path) as run:

        def look(step: int) -> None:
            run.model.eval()
            with torch.no_grad():
                for block in run.model.blocks:
                    block(torch.full((1, 2, WIDTH), 1e6))
            run.model.train()

        run.train(12, before_step=look)
    for name, signal in journal_of(tmp_path).columns.items():
        if name.startswith("activation_rms/"):
            assert signal.recorded
            assert max(signal.values[signal.present]) < 100


@pytest.mark.filterwarnings("ignore:.torch.jit.trace")
def test_a_graph_of_the_user_has_no_operation_of_the_guard(tmp_path: Path) -> None:
    model, tokens = make_model(), torch.zeros(2, 8, dtype=torch.int64)
    model.dropout.p = 0.0  # random numbers would fail the check of `trace`

    def sizes() -> list[int]:
        return [
            len(list(torch.jit.trace(model, tokens).inlined_graph.nodes())),
            len(torch.export.export(model, (tokens,)).graph.nodes),
            len(make_fx(model)(tokens).graph.nodes),
            len(make_fx(model, pre_dispatch=True)(tokens).graph.nodes),
        ]

    bare = sizes()
    with watching(tmp_path, model=model) as run:
        assert sizes() == bare
        run.train(2)
    assert "activation_rms/blocks.0" in journal_of(tmp_path).columns
