"""A tiny mixture of experts, for tests and measurements of routers."""

import torch
from torch import nn
from torch.nn import functional as F

WIDTH, VOCABULARY, NUM_EXPERTS = 16, 32, 8


class Mixture(nn.Module):
    """Two of eight experts for each token."""

    def __init__(self) -> None:
        super().__init__()
        self.top_k = 2
        self.gate = nn.Linear(WIDTH, NUM_EXPERTS)
        self.experts = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(NUM_EXPERTS))
        self.used = torch.zeros(NUM_EXPERTS)
        """The share of each expert in the last forward pass."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Mix what the chosen experts return."""
        scores = self.gate(x).softmax(dim=-1)
        top, chosen = scores.topk(self.top_k, dim=-1)
        self.used = F.one_hot(chosen, NUM_EXPERTS).float().flatten(0, -2).mean(dim=0)
        mask = torch.zeros_like(scores).scatter(-1, chosen, top)
        out = torch.stack([F.gelu(expert(x)) for expert in self.experts], dim=-1)
        return x + (out * mask[..., None, :]).sum(dim=-1)


class Model(nn.Module):
    """Three mixtures between an embedding and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.layers = nn.ModuleList(nn.ModuleDict({"moe": Mixture()}) for _ in range(3))
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return logits."""
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer["moe"](x)  # type: ignore[index]
        logits: torch.Tensor = self.head(x)
        return logits
