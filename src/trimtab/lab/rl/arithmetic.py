"""The task: `3 + 4 =` is answered by some thoughts, a digit and an end, such as `~ ~ 7 .`.

The answer is the sum modulo 10. The length of the thoughts is free, so that responses have a
length, and a response that does not end within the limit is truncated and wrong.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from trimtab.lab.model.gpt import Gpt
from trimtab.lab.model.sizes import ModelConfig

PLUS, EQUALS, THOUGHT, END, PAD = 10, 11, 12, 13, 14
VOCAB_SIZE = 16
PROMPT_LENGTH = 6
"""Tokens of a prompt, padded on the left."""

MODEL = ModelConfig(
    vocab_size=VOCAB_SIZE, width=32, layers=2, heads=2, tied_head=False, init_std=0.15
)

DIGITS = 4
"""The digits that are added are under it: sums that a small model learns in seconds."""

_BASE_STEPS, _BASE_BATCH, _BASE_LR = 400, 64, 1e-2
_BASE_RIGHT = 0.5
"""Share of right answers in the examples of the base policy: enough to learn from, far from all."""

_MASKED = -100


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompts:
    """A batch of prompts and their right answers."""

    tokens: Tensor
    """(prompts, PROMPT_LENGTH)."""
    answers: Tensor
    """(prompts,): a digit each."""


def make_prompts(terms: Tensor, *, has_equals: bool = True) -> Prompts:
    """Return the prompts that ask for the sums of (prompts, 2 or 3) digits.

    Without the `=` a prompt ends as none of the base policy's examples does.
    """
    parts: list[Tensor] = []
    for term in terms.unbind(1):
        parts += [term, torch.full_like(term, PLUS)]
    parts[-1] = torch.full_like(parts[-1], EQUALS if has_equals else PAD)
    tokens = torch.stack(parts, 1)
    padded = F.pad(tokens, (PROMPT_LENGTH - tokens.shape[1], 0), value=PAD)
    return Prompts(tokens=padded, answers=terms.sum(1) % 10)


def grade(responses: Tensor, answers: Tensor) -> tuple[Tensor, Tensor]:
    """Return which responses are right, and which are truncated.

    Right: thoughts, then the one digit that is the answer, then the end.
    """
    ends = responses == END
    is_truncated = ~ends.any(1)
    at = ends.float().argmax(1)
    last = responses.gather(1, (at - 1).clamp(min=0)[:, None])[:, 0]
    before = torch.arange(responses.shape[1]) < (at - 1)[:, None]
    is_clean = ((responses == THOUGHT) | ~before).all(1)
    return is_clean & (last == answers) & (at > 0) & ~is_truncated, is_truncated


def response_mask(responses: Tensor) -> Tensor:
    """Return which tokens of responses were written before or at their end."""
    return (responses == END).int().cumsum(1) - (responses == END).int() == 0


@torch.no_grad()
def generate(
    model: Gpt, prompts: Tensor, length: int, generator: torch.Generator, temperature: float = 1.0
) -> Tensor:
    """Return sampled responses of at most `length` tokens; after its end a response is padded."""
    tokens, is_over = prompts, torch.zeros(len(prompts), dtype=torch.bool)
    for _ in range(length):
        logits = model(tokens, tokens).logits[:, -1] / max(temperature, 1e-3)
        drawn = torch.multinomial(logits.softmax(-1), 1, generator=generator)[:, 0]
        drawn = torch.where(is_over, PAD, drawn)
        tokens = torch.cat((tokens, drawn[:, None]), 1)
        is_over |= drawn == END
        if bool(is_over.all()):
            break
    responses = tokens[:, prompts.shape[1] :]
    return F.pad(responses, (0, length - responses.shape[1]), value=PAD)


def make_base_policy(seed: int, length: int) -> Gpt:
    """Train a policy that knows the form of an answer, and is right in about a third of them."""
    generator = torch.Generator().manual_seed(seed)
    model = Gpt(MODEL, generator=generator)
    optimizer = torch.optim.AdamW(model.parameters(), lr=_BASE_LR, weight_decay=0.01)
    for step in range(_BASE_STEPS):
        terms = torch.randint(0, DIGITS, (_BASE_BATCH, 2), generator=generator)
        prompts = make_prompts(terms)
        guess = torch.randint(0, 10, (_BASE_BATCH,), generator=generator)
        is_right = torch.rand(_BASE_BATCH, generator=generator) < _BASE_RIGHT
        digits = torch.where(is_right, prompts.answers, guess)
        # Most answers have few thoughts: half as many for each one more.
        halvings = -torch.rand(_BASE_BATCH, generator=generator).log2()
        thoughts = halvings.long().clamp(max=length - 3)
        places = torch.arange(length)
        responses = torch.full((_BASE_BATCH, length), PAD)
        responses[places < thoughts[:, None]] = THOUGHT
        responses[places == thoughts[:, None]] = digits
        responses[places == thoughts[:, None] + 1] = END
        tokens = torch.cat((prompts.tokens, responses), 1)
        targets = tokens[:, 1:].clone()
        targets[:, : PROMPT_LENGTH - 1] = _MASKED
        targets[targets == PAD] = _MASKED
        optimizer.param_groups[0]["lr"] = _BASE_LR * (1 - step / _BASE_STEPS)
        loss = model(tokens[:, :-1], targets).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model
