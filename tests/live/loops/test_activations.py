"""Activations: which modules are the blocks, and what they return."""

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.kit.tiny import VOCABULARY, WIDTH, Tiny, TinyBlock, journal_of, make_model
from tests.kit.user_loop import adamw, train, warnings_of
from torch import nn

import trimtab


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
        assert x.shape[-1] == WIDTH
        logits: torch.Tensor = self.head(x)
        return logits


def test_blocks_that_return_a_dict_are_not_taken_for_compiled(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = DictModel()
    optimizer = adamw(model.parameters())
    with trimtab.watch(model, optimizer, run_dir=tmp_path) as guard:
        train(guard, model, optimizer, 15)
    assert not [sentence for sentence in warnings_of(caplog) if "compile" in sentence]


class ExpertLayer(nn.Module):
    """A layer of more experts than the model has layers."""

    def __init__(self) -> None:
        super().__init__()
        self.experts = nn.ModuleList(TinyBlock() for _ in range(5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.stack([expert(x) for expert in self.experts]).mean(dim=0)


class ExpertModel(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.layers = nn.ModuleList(ExpertLayer() for _ in range(3))
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x)
        logits: torch.Tensor = self.head(x)
        return logits


def test_the_layers_are_the_blocks_and_not_the_experts_of_one(tmp_path: Path) -> None:
    model = ExpertModel()
    optimizer = adamw(model.parameters())
    with trimtab.watch(model, optimizer, run_dir=tmp_path) as guard:
        train(guard, model, optimizer, 12)
    names = {name for name in journal_of(tmp_path).columns if name.startswith("activation_rms/")}
    assert names == {f"activation_rms/layers.{number}" for number in range(3)}


def test_a_forward_of_something_else_is_in_no_activation(tmp_path: Path) -> None:
    model = make_model()
    optimizer = adamw(model.parameters())

    def look(step: int) -> None:
        model.eval()
        with torch.no_grad():
            for block in model.blocks:
                block(torch.full((1, 2, WIDTH), 1e6))
        model.train()

    with trimtab.watch(model, optimizer, run_dir=tmp_path) as guard:
        train(guard, model, optimizer, 12, before_step=look)
    for name, signal in journal_of(tmp_path).columns.items():
        if name.startswith("activation_rms/"):
            assert signal.recorded
            assert max(signal.values[signal.present]) < 100
