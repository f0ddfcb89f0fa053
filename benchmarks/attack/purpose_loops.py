"""The loops that are changed on purpose: two tiny models, their data, and hooks for an edit.

A loop knows nothing of trimtab but the lines that its documentation asks for. A case derives from
one of the two and says what its user does, when, and how to see that it is still in force.
"""

import functools
import re
from collections.abc import Callable, Collection, Iterator
from typing import Any, ClassVar

import torch
from torch import nn
from torch.nn import functional as F

STEPS = 240
VOCABULARY, WIDTH, HEADS, LENGTH = 32, 24, 2, 12
USED = 28
"""Tokens that occur in the data; the rest are reserved, as in most vocabularies."""


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value, self.out = (
            nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4)
        )
        self.register_buffer("mask", torch.full((48, 48), float("-inf")).triu(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, _ = x.shape
        query, key, value = (
            layer(x).view(batch, length, HEADS, -1).transpose(1, 2)
            for layer in (self.query, self.key, self.value)
        )
        mask = self.get_buffer("mask")[:length, :length]
        mixed = F.scaled_dot_product_attention(query, key, value, attn_mask=mask)
        out: torch.Tensor = self.out(mixed.transpose(1, 2).flatten(2))
        return out


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attention = Attention()
        self.mlp = nn.Sequential(
            nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(), nn.Dropout(0.0), nn.Linear(2 * WIDTH, WIDTH)
        )
        self.gate = nn.Parameter(torch.tensor(1.0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.norm1(x))
        change: torch.Tensor = self.mlp(self.norm2(x))
        return x + self.gate * change


class Gpt(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.position = nn.Parameter(0.02 * torch.randn(LENGTH, WIDTH))
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY)
        self.register_buffer("logit_mask", torch.zeros(VOCABULARY))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens) + self.position[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x)
        logits: torch.Tensor = self.head(self.norm(x)) + self.get_buffer("logit_mask")
        return logits


class Loop:
    """A run, and what its user changes in the middle of it.

    `edit` is called before each step of `at`, or between backward and update for `place = "grads"`,
    or after the update for `place = "updated"`.
    """

    at: ClassVar[Collection[int]] = (150,)
    place: ClassVar[str] = "start"
    horizon: ClassVar[int] = 25
    """After how many steps it is looked whether an edit is still there."""
    ranks: ClassVar[int] = 1

    def __init__(self, seed: int = 0) -> None:
        torch.manual_seed(seed)
        self.step = 0
        self.random = torch.Generator().manual_seed(seed + 1)
        self.losses: list[float] = []
        self.model: Any = self.make_model()
        self.prepare()
        self.optimizer: Any = self.make_optimizer()
        self.memory: dict[str, Any] = {}
        self.before: dict[str, torch.Tensor] = {}
        self.after: dict[str, torch.Tensor] = {}
        self.edited_at = STEPS
        self.left = 0.0

    def make_model(self) -> nn.Module:
        raise NotImplementedError

    def prepare(self) -> None:
        """Set up what the edit needs, before there is an optimizer."""

    def make_optimizer(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.trained(), lr=3e-3, weight_decay=0.01)

    def loss(self) -> torch.Tensor:
        """The loss of the batch of the present step, as it is recorded and trained on."""
        raise NotImplementedError

    def edit(self) -> None:
        """What is done on purpose."""

    def holds(self) -> bool | None:
        """Whether the edit is in force; None if it leaves nothing that one could look for.

        By default, whether most of the last change is there `horizon` steps later: training takes
        some changes back in the long run, an undo does it at once.
        """
        return self.left > 0.5

    def train(self, guard: Any) -> None:
        """Do all steps, with a guard or, if it is None, without one."""
        for self.step in range(STEPS):
            self._edit_at("start")
            loss = self.loss()
            if guard is not None:
                guard.record(loss=loss)
            loss.backward()
            self._edit_at("grads")
            if guard is not None:
                guard.clip_grad_norm_(1.0)
            else:
                nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self.optimizer.step()
            self._edit_at("updated")
            self.optimizer.zero_grad()
            self.losses.append(float(loss.detach()))
            if self.step == min(self.edited_at + self.horizon, STEPS - 1):
                self.left = self.remains()

    def _edit_at(self, place: str) -> None:
        if place == self.place and self.step in self.at:
            self.before = self.copies()
            self.edit()
            self.after, self.edited_at = self.copies(), self.step

    def copies(self) -> dict[str, torch.Tensor]:
        """Copies of all weights and buffers of floating point, by name."""
        state = self.model.state_dict()
        return {name: v.detach().clone() for name, v in state.items() if v.is_floating_point()}

    def remains(self) -> float:
        """How much of the last edit is left: 1 all of it, 0 nothing.

        It is the part of the movement since then along the edit; that of training is hardly.
        """
        last, along, length = self.copies(), 0.0, 0.0
        for name in self.before.keys() & self.after.keys() & last.keys():
            old, new, now = self.before[name], self.after[name], last[name]
            if old.shape == new.shape == now.shape:
                change = (new - old).nan_to_num(0, 0, 0)
                along += float(((now - old).nan_to_num(0, 0, 0) * change).sum())
                length += float((change * change).sum())
        return along / length if length else 0.0

    def trained(self) -> list[nn.Parameter]:
        return [p for p in self.model.parameters() if p.requires_grad]

    def matrices(self) -> list[nn.Parameter]:
        """The weights of the linear layers in the blocks, where most of a model is."""
        named = self.model.named_parameters()
        return [p for name, p in named if p.ndim == 2 and ("blocks" in name or "weight" in name)]

    def states(self) -> Iterator[dict[str, Any]]:
        """The optimizer's state of each parameter."""
        yield from self.optimizer.state.values()

    def exchange(self, old: nn.Parameter, new: nn.Parameter | None) -> None:
        """Put a parameter in the place of another in the optimizer; None takes it out."""
        self.optimizer.state.pop(old, None)
        for group in self.optimizer.param_groups:
            kept = [new if p is old else p for p in group["params"]]
            group["params"] = [p for p in kept if p is not None]


class Transformer(Loop):
    """Next tokens of a Markov chain, AdamW."""

    def make_model(self) -> nn.Module:
        return Gpt()

    def batch(self) -> torch.Tensor:
        """The tokens of the present step."""
        return markov(self.step)

    def loss(self) -> torch.Tensor:
        tokens = self.batch()
        return self.criterion(self.model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())

    def criterion(self, logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(logits, targets)


class Classifier(Loop):
    """A network of three layers on 16 features, SGD."""

    def make_model(self) -> nn.Module:
        return nn.Sequential(
            nn.Linear(16, 48), nn.ReLU(), nn.Linear(48, 48), nn.ReLU(), nn.Linear(48, 8)
        )

    def make_optimizer(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.trained(), lr=0.05, momentum=0.9)

    def batch(self) -> tuple[torch.Tensor, torch.Tensor]:
        random = torch.Generator().manual_seed(1000 + self.step)
        inputs = torch.randn(64, 16, generator=random)
        return inputs, torch.tanh(inputs @ _TEACHER[0]).matmul(_TEACHER[1]).argmax(-1)

    def loss(self) -> torch.Tensor:
        inputs, labels = self.batch()
        return self.criterion(self.model(inputs), labels)

    def criterion(self, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(logits, labels)


_FIXED = torch.Generator().manual_seed(3)
_TEACHER = torch.randn(16, 24, generator=_FIXED), torch.randn(24, 8, generator=_FIXED)
_CHAIN = torch.softmax(2.5 * torch.randn(USED, USED, generator=_FIXED), -1)


@functools.cache
def markov(index: int) -> torch.Tensor:
    """A batch of tokens of a Markov chain; made once for all runs of a process."""
    random = torch.Generator().manual_seed(100 + index)
    tokens = torch.randint(0, USED, (16, 1), generator=random)
    for _ in range(LENGTH):
        following = torch.multinomial(_CHAIN[tokens[:, -1]], 1, generator=random)
        tokens = torch.cat([tokens, following], 1)
    return tokens


CASES: dict[str, type[Loop]] = {}
"""What users do on purpose, by name."""


Edit = Callable[[Any], None]


def case(loop: type[Loop]) -> type[Loop]:
    """Add a loop to the cases; `HeadUntied` is called "head untied"."""
    CASES[re.sub(r"(?<!^)(?=[A-Z])", " ", loop.__name__).lower()] = loop
    return loop


def purpose(base: type[Loop], **members: object) -> Callable[[Edit], Edit]:
    """Add the loop that is `base` but for an edit and some members; `gate_closed` is "gate closed".

    The members are those of `Loop`: at which steps, in which place of a step, whether it holds.
    """

    def add(edit: Edit) -> Edit:
        name = edit.__name__
        CASES[name.replace("_", " ")] = type(name, (base,), {**members, "edit": edit})
        return edit

    return add


def leaves_no_trace(run: Loop) -> None:
    """Say of an edit that it acts on updates only: there is nothing to look for."""
