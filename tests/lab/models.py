"""Tiny models and the rows that they are fed."""

import dataclasses
from typing import Any

import torch
from torch import Tensor

from trimtab.lab.model.gpt import Gpt, Output, Signals
from trimtab.lab.model.sizes import SIZES, ModelConfig

TINY = SIZES["0.15M"]


def make(config: ModelConfig = TINY, seed: int = 0, **options: Any) -> Gpt:
    generator = torch.Generator().manual_seed(seed)
    return Gpt(dataclasses.replace(config, **options), generator=generator)


def rows(batch: int = 2, length: int = 24) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    both = torch.randint(TINY.vocab_size, (batch, length + 1), generator=generator)
    return both[:, :-1], both[:, 1:]


def measured(model: Gpt) -> Signals:
    model.measure = True
    output: Output = model(*rows())
    assert output.signals is not None
    return output.signals


def gradients(model: Gpt) -> dict[str, Tensor]:
    model.zero_grad()
    model(*rows()).loss.backward()
    return {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
