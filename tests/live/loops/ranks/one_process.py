"""The same training in one process: what the numbers of several ranks are compared with."""

from typing import Any

import torch
from tests.kit.tiny import loss_of, make_model


def norms_of_one_process(data: list[torch.Tensor]) -> list[float]:
    """The gradient norms of the same training without ranks."""
    model = plain_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, foreach=False)
    norms = []
    for batch in data:
        optimizer.zero_grad()
        loss_of(model, batch).backward()
        gradients = [p.grad for p in model.parameters() if p.grad is not None]
        norms.append(float(torch.nn.utils.get_total_norm(gradients)))
        optimizer.step()
    return norms


def plain_model() -> Any:
    """The tiny model without dropout: ranks have random numbers of their own."""
    model = make_model()
    model.dropout.p = 0.0
    return model
