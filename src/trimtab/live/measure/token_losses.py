"""The loss of every token, from what a model returns: `model(..., labels=labels)` with `.logits`.

For models that compute their loss themselves, as those of transformers do. Whether labels are
shifted inside is known from the model's own loss, which must be the mean of these.
"""

import inspect
import math
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from trimtab.live.measure.roles import plain_name

LABELS = "labels"

IGNORED = -100
"""The label of a token that has no loss; the default of torch's cross entropy."""

CHUNK = 2**22
"""Logits that are read at a time: 16 MB in fp32."""

CPU_LOGITS, DEVICE_LOGITS = 2**21, 2**30
"""Logits that are read at all, by the kind of device: on a processor 8 ms. Of more, tokens at even
distances of each sequence."""


def find_labelled(model: nn.Module) -> nn.Module | None:
    """Return the innermost module whose `forward` takes labels, with wrappers such as DDP."""
    found, path = None, ""
    for name, module in model.named_modules():
        is_inside = found is None or f"{name}.".startswith(path)
        if is_inside and LABELS in inspect.signature(type(module).forward).parameters:
            found, path = module, f"{name}." if name else ""
    # The hook of a wrapper stays outside of what is compiled.
    return model if found is not None and not plain_name(path) else found


@torch.no_grad()
def token_losses(
    logits: torch.Tensor, labels: torch.Tensor, own: torch.Tensor, num_items: Any = None
) -> torch.Tensor:
    """Return the loss of every token [batch, length] in fp32, 0 without a label or if not read.

    The logits are [batch, length, vocabulary], the labels [batch, length]. `own` is the loss of the
    model, divided by `num_items` if not by the number of labels.
    """
    labels = labels.to(logits.device)
    limit = CPU_LOGITS if logits.device.type == "cpu" else DEVICE_LOGITS
    stride = math.ceil(logits.numel() / limit)
    both = torch.stack((labels, F.pad(labels[:, 1:], (0, 1), value=IGNORED)))
    read = both[:, :, ::stride]
    is_labelled = read != IGNORED
    places = torch.where(is_labelled, read, 0).flatten(1)
    size = max(CHUNK // logits.shape[-1], 1)
    parts = []
    chunks = logits.detach()[:, ::stride].flatten(0, 1).split(size)
    for rows, columns in zip(chunks, places.split(size, dim=1), strict=True):
        scores = rows.float()
        parts.append(scores.logsumexp(dim=-1) - scores.gather(1, columns.T).T)
    found = torch.where(is_labelled, torch.cat(parts, dim=1).view(read.shape), 0.0)
    count = is_labelled.sum(dim=(1, 2)) if num_items is None else num_items / stride
    off = (found.sum(dim=(1, 2)) / count - own.detach().float()).abs()
    losses = found.new_zeros(labels.shape)
    losses[:, ::stride] = torch.where(off[0] < off[1], found[0], found[1])
    return losses
