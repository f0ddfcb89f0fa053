"""What users do on purpose to parts of a model that come, go or start over, and to buffers."""

import copy
import math

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from benchmarks.attack.purpose_cases.loop import (
    STEPS,
    USED,
    WIDTH,
    Block,
    Classifier,
    Images,
    Transformer,
    case,
    purpose,
)

# Parts that start over, come, go or are tied.


@purpose(Classifier, at=(121, 122))
@torch.no_grad()
def dormant_neurons_reset(run: Classifier) -> None:
    """ReDo: the quietest hidden units are drawn anew, with outgoing weights of 0, twice."""
    quiet = run.model[0].weight.norm(dim=1).argsort()[:8]
    run.model[0].weight[quiet] = 0.2 * torch.randn(8, 16, generator=run.random)
    run.model[2].weight[:, quiet] = 0


@purpose(Transformer, at=(150,), holds=lambda run: len(run.model.blocks) == 3)
def block_added(run: Transformer) -> None:
    """Progressive stacking: a copy of the last block is put on top."""
    run.model.blocks.append(copy.deepcopy(run.model.blocks[-1]))
    run.optimizer.add_param_group({"params": list(run.model.blocks[-1].parameters())})


@purpose(Transformer, at=(149,), holds=lambda run: len(run.model.blocks) == 1)
def block_removed(run: Transformer) -> None:
    """The second block is dropped; its parameters stay in the optimizer, without gradients."""
    del run.model.blocks[1]


@purpose(Classifier, at=(130,), holds=lambda run: len(run.model[0].weight) == 64)
def layer_widened(run: Classifier) -> None:
    """Net2Net: 16 hidden units are copied, and the outgoing weights of both copies halved."""
    first, second = run.model[0], run.model[2]
    out = second.weight.data.clone()
    out[:, :16] *= 0.5
    for owner, name, value in (
        (first, "weight", torch.cat([first.weight.data, first.weight.data[:16]])),
        (first, "bias", torch.cat([first.bias.data, first.bias.data[:16]])),
        (second, "weight", torch.cat([out, out[:, :16]], 1)),
    ):
        old, new = getattr(owner, name), nn.Parameter(value)
        setattr(owner, name, new)
        run.exchange(old, new)


class _Experts(nn.Module):
    """The expert with the largest probability, weighted by it."""

    def __init__(self, expert: nn.Module) -> None:
        super().__init__()
        self.experts = nn.ModuleList(copy.deepcopy(expert) for _ in range(2))
        self.router = nn.Linear(WIDTH, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        shares = self.router(x).softmax(-1)
        return sum(
            (shares[..., i : i + 1] * expert(x) for i, expert in enumerate(self.experts)),
            torch.zeros_like(x),
        )


@purpose(Transformer, at=(140,), holds=lambda run: isinstance(run.model.blocks[1].mlp, _Experts))
def upcycled_to_experts(run: Transformer) -> None:
    """The MLP of a block becomes two experts and a router, with parameters of their own."""
    block: Block = run.model.blocks[1]
    for old in block.mlp.parameters():
        run.exchange(old, None)
    block.mlp = _Experts(block.mlp)  # type: ignore[assignment]
    run.optimizer.add_param_group({"params": list(block.mlp.parameters())})


@purpose(Transformer, at=(101,), holds=lambda run: run.model.head.weight is run.model.embed.weight)
def head_tied(run: Transformer) -> None:
    """Embedding and head share a matrix from now on."""
    run.exchange(run.model.head.weight, None)
    run.model.head.weight = run.model.embed.weight


@case
class HeadUntied(Transformer):
    """Embedding and head shared a matrix; from now on each has its own."""

    at = (149,)

    def prepare(self) -> None:
        nn.init.normal_(self.model.embed.weight, std=0.2)
        self.model.head.weight = self.model.embed.weight

    def edit(self) -> None:
        self.model.head.weight = nn.Parameter(self.model.embed.weight.detach().clone())
        self.optimizer.add_param_group({"params": [self.model.head.weight], "lr": 1e-3})

    def holds(self) -> bool:
        return self.model.head.weight is not self.model.embed.weight


@case
class AdapterMerged(Transformer):
    """LoRA of the head is merged through `.data` and deleted; the whole head trains on."""

    at = (135,)

    def prepare(self) -> None:
        head = self.model.head
        head.down = nn.Parameter(0.1 * torch.randn(4, WIDTH))
        head.up = nn.Parameter(torch.zeros(32, 4))
        head.weight.requires_grad_(False)
        head.forward = lambda x: F.linear(x, head.weight + head.up @ head.down, head.bias)

    def edit(self) -> None:
        head = self.model.head
        head.weight.data += head.up.data @ head.down.data
        for adapter in (head.up, head.down):
            self.exchange(adapter, None)
        del head.up, head.down, head.forward
        head.weight.requires_grad_(True)
        self.optimizer.add_param_group({"params": [head.weight]})


# Buffers.


@purpose(
    Transformer,
    at=(149,),
    holds=lambda run: bool(torch.isneginf(run.model.logit_mask[USED:]).all()),
)
def tokens_forbidden(run: Transformer) -> None:
    """Reserved tokens are forbidden: -inf in a buffer that is added to the logits."""
    run.model.logit_mask[USED:] = -math.inf


@purpose(
    Transformer,
    at=(129,),
    holds=lambda run: bool(torch.isneginf(run.model.blocks[0].attention.mask[8, 2])),
)
def sliding_window(run: Transformer) -> None:
    """Attention is limited to 4 tokens: more -inf in the buffers of the masks."""
    far = torch.ones(48, 48).tril(-4).bool()
    for block in run.model.blocks:
        block.attention.mask.masked_fill_(far, -math.inf)


@purpose(
    Images,
    at=(140,),
    holds=lambda run: all(
        int(norm.num_batches_tracked or 0) == STEPS - 140 for norm in run.norms()
    ),
)
def running_statistics_reset(run: Images) -> None:
    """BatchNorm starts its running statistics over, with a smaller momentum."""
    for norm in run.norms():
        norm.reset_running_stats()
        norm.momentum = 0.01


@purpose(Images, at=(150,), holds=lambda run: run.remains() > 0.9)
def norm_frozen(run: Images) -> None:
    """BatchNorm is put in evaluation for fine-tuning, its statistics scaled for other images."""
    for norm in run.norms():
        norm.eval()
        if norm.running_var is not None:
            norm.running_var *= 1.5


@purpose(Images, at=(151,), horizon=3)
def variance_floor_numpy(run: Images) -> None:
    """Running variances get a floor of 1, through NumPy, before an export and training on."""
    for norm in run.norms():
        if norm.running_var is not None:
            values = norm.running_var.numpy()
            np.maximum(values, 1.0, out=values)


@case
class QueueFlushed(Classifier):
    """MoCo: a buffer of keys is written in a ring at each step, and emptied at 150."""

    at = range(STEPS)

    def prepare(self) -> None:
        self.model.register_buffer("queue", torch.zeros(32, 8))

    def edit(self) -> None:
        if self.step == 150:
            self.model.queue.zero_()
        with torch.no_grad():
            self.model.queue[self.step % 32] = self.model(self.batch()[0]).mean(0)

    def holds(self) -> bool:
        return bool(self.model.queue.any())


@case
class TargetNetworkCopied(Classifier):
    """RL: a target network inside the model is overwritten every 50 steps."""

    at = range(50, STEPS, 50)

    def prepare(self) -> None:
        self.target = copy.deepcopy(self.model).requires_grad_(False)
        self.model.add_module("target", nn.Identity())
        self.model.target.copy = self.target

    def loss(self) -> torch.Tensor:
        inputs, labels = self.batch()
        logits = self.model[:5](inputs)
        drift = F.mse_loss(logits, self.target(inputs))
        return self.criterion(logits, labels) + 0.01 * drift

    def edit(self) -> None:
        self.target.load_state_dict(self.model[:5].state_dict())
