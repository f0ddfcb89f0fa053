"""The lab's GPT at any width, with muP or without: for the coordinate check."""

from collections.abc import Callable
from typing import Any

import torch
from tests.kit.check_objects.architectures import VOCAB, text

from trimtab.lab.model.gpt import Gpt
from trimtab.lab.model.optimizer import OptimizerConfig, make_optimizer
from trimtab.lab.model.sizes import ModelConfig

BASE_WIDTH, HEAD_SIZE, LR = 64, 16, 3e-3


def make_at_width(*, is_mup: bool) -> Callable[[int], dict[str, Any]]:
    """Return a function from a width to the objects of a run."""

    def make(width: int) -> dict[str, Any]:
        config = ModelConfig(
            vocab_size=VOCAB,
            width=width,
            layers=3,
            heads=width // HEAD_SIZE,
            mup_base_width=BASE_WIDTH if is_mup else None,
        )
        model = Gpt(config, generator=torch.Generator().manual_seed(0))
        rows = [batch["input_ids"] for batch in text()]
        return {
            "model": model,
            "optimizer": make_optimizer(model, OptimizerConfig(lr=LR)),
            "loader": [(tokens[:, :-1], tokens[:, 1:]) for tokens in rows],
            "loss": lambda model, batch: model(*batch).loss,
        }

    return make
