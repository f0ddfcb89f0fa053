"""The GRPO trainer of the lab, watched by trimtab.

    prompts -> engine (a copy of the policy) -> responses -> verifier -> rewards
            -> advantages within each group -> clipped objective + KL to the reference -> update

It has the parts in which such runs go wrong: an engine that makes the rollouts with weights of its
own, a verifier, a reference, a length limit, advantages. `Knobs` are what a fault changes.

The task: `3 + 4 =` is answered by some thoughts, a digit and an end, such as `~ ~ 7 .`. The answer
is the sum modulo 10. The length of the thoughts is free, so that responses have a length, and a
response that does not end within the limit is truncated and wrong.
"""

import copy
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

import trimtab
from trimtab.core import signals
from trimtab.core.config import Mode
from trimtab.core.errors import ConfigError
from trimtab.lab.model.gpt import Gpt
from trimtab.lab.model.sizes import ModelConfig
from trimtab.lab.scenarios.catalogue import CLEAN
from trimtab.lab.trainer.train import EVERY_TENTH

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


LENGTH = 8
"""The length limit of a response, in tokens."""

EVAL_EVERY, EVAL_PROMPTS = 10, 64
CLIP = 0.2
"""The range of the ratio. Source: PPO; the default of TRL and verl."""

BASES = 3
"""Base policies; a seed uses one of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RlConfig:
    """The settings of one run."""

    seed: int = 0
    steps: int = 240
    lr: float = 2e-4
    kl_weight: float = 0.02
    prompts: int = 8
    group: int = 8
    """Responses to each prompt."""

    @classmethod
    def from_seed(cls, seed: int, steps: int = 240) -> "RlConfig":
        """Return the settings of a seed: rate, KL weight and group size differ."""
        generator = torch.Generator().manual_seed(10_000 + seed)

        def choose(*values: float) -> float:
            return values[int(torch.randint(len(values), (1,), generator=generator))]

        return cls(
            seed=seed,
            steps=steps,
            lr=choose(1e-4, 2e-4, 3e-4),
            kl_weight=choose(0.01, 0.02, 0.04),
            group=int(choose(6, 8)),
        )


@dataclass(slots=True, kw_only=True)
class Knobs:
    """What a fault changes; the defaults are right."""

    lr_factor: float = 1.0
    kl_factor: float = 1.0
    syncs: bool = True
    """Whether the engine gets the weights of each step."""
    sync_every: int = 1
    """Steps after which it gets them: until then its rollouts get older and older."""
    temperature: float = 1.0
    """Of the engine; the trainer always computes log-probabilities at 1."""
    verifier: Callable[[Tensor, Tensor], Tensor] = lambda responses, answers: grade(
        responses, answers
    )[0].float()
    reward_per_token: float = 0.0
    length: int = LENGTH
    terms: tuple[int, int, int] = (2, 0, DIGITS)
    """How many digits are added, and their range."""
    has_equals: bool = True
    centers: bool = True
    """Whether the mean of a group is subtracted and its spread bounded from below."""
    wrong_reference: bool = False


def train(
    config: RlConfig,
    run_dir: Path,
    *,
    fault: Callable[[Knobs], None] | None = None,
    onset: int = 0,
    mode: Mode = Mode.OBSERVE,
    is_watched: bool = True,
) -> list[dict[str, float]]:
    """Train a policy; return the records of its steps. `fault` changes the knobs at `onset`."""
    torch.set_num_threads(1)
    dice = torch.Generator().manual_seed(config.seed)
    base = _base_policy(config.seed % BASES)
    policy, engine, reference = (copy.deepcopy(base) for _ in range(3))
    optimizer = torch.optim.AdamW(policy.parameters(), lr=config.lr, weight_decay=0.0)
    knobs, records = Knobs(), []
    with trimtab.watch(
        policy, optimizer, run_dir=run_dir, mode=mode, config=EVERY_TENTH, enabled=is_watched
    ) as guard:
        for step in range(config.steps):
            if fault is not None and step == onset:
                fault(knobs)
                if knobs.wrong_reference:
                    reference = Gpt(MODEL, generator=torch.Generator().manual_seed(99))
            if knobs.syncs and step % knobs.sync_every == 0:
                engine.load_state_dict(policy.state_dict())
            rollout = _roll_out(engine, config, knobs, dice)
            held_out = {signals.EVAL_REWARD: evaluate(policy)} if step % EVAL_EVERY == 0 else {}
            for group in optimizer.param_groups:
                group["lr"] = config.lr * knobs.lr_factor
            loss, measured = _objective(policy, reference, config, knobs, rollout)
            numbers: dict[str, Any] = measured | held_out
            guard.record(loss=loss, **numbers)
            optimizer.zero_grad()
            loss.backward()
            norm = guard.clip_grad_norm_(1.0)
            optimizer.step()
            records.append(
                {
                    signals.LOSS: float(loss.detach()),
                    signals.GRAD_NORM: float(norm),
                    signals.LR: config.lr * knobs.lr_factor,
                    **measured,
                    **held_out,
                }
            )
    return records


@cache
def _base_policy(seed: int) -> Gpt:
    return make_base_policy(seed, LENGTH)


@torch.no_grad()
def evaluate(policy: Gpt) -> float:
    """Return the share of right answers to held-out prompts, by the right verifier."""
    dice = torch.Generator().manual_seed(7)
    prompts = make_prompts(torch.randint(0, DIGITS, (EVAL_PROMPTS, 2), generator=dice))
    responses = generate(policy, prompts.tokens, LENGTH, dice)
    return float(grade(responses, prompts.answers)[0].float().mean())


def _roll_out(
    engine: Gpt, config: RlConfig, knobs: Knobs, dice: torch.Generator
) -> tuple[Prompts, Tensor, Tensor]:
    """Return prompts, each as often as its group is large, with responses and log-probabilities."""
    count, low, high = knobs.terms
    terms = torch.randint(low, high, (config.prompts, count), generator=dice)
    asked = make_prompts(terms.repeat_interleave(config.group, 0), has_equals=knobs.has_equals)
    responses = generate(engine, asked.tokens, knobs.length, dice, knobs.temperature)
    with torch.no_grad():
        scores = _scores(engine, asked.tokens, responses) / knobs.temperature
    return asked, responses, _chosen(scores.log_softmax(-1), responses)


def _objective(
    policy: Gpt,
    reference: Gpt,
    config: RlConfig,
    knobs: Knobs,
    rollout: tuple[Prompts, Tensor, Tensor],
) -> tuple[Tensor, dict[str, float]]:
    """Return the loss of a batch of rollouts, and what was measured."""
    asked, responses, old = rollout
    mask = response_mask(responses).float()
    lengths = mask.sum(1)
    _, is_truncated = grade(responses, asked.answers)
    rewards = knobs.verifier(responses, asked.answers) + knobs.reward_per_token * lengths
    groups = rewards.view(config.prompts, config.group)
    spread = groups.std(1, keepdim=True)
    if knobs.centers:
        gains = (groups - groups.mean(1, keepdim=True)) / (spread + 1e-4)
    else:
        gains = groups / (spread + 1e-8)
    logs = _scores(policy, asked.tokens, responses).log_softmax(-1)
    new = _chosen(logs, responses)
    with torch.no_grad():
        base = _chosen(_scores(reference, asked.tokens, responses).log_softmax(-1), responses)
    ratio = (new - old).exp()
    gain = gains.view(-1, 1)
    gained = torch.min(ratio * gain, ratio.clamp(1 - CLIP, 1 + CLIP) * gain)
    kl = (base - new).clamp(max=20).exp() - (base - new) - 1  # never negative (Schulman, k3)

    def mean(values: Tensor) -> Tensor:
        return (values * mask).sum() / mask.sum()

    loss = -mean(gained) + knobs.kl_factor * config.kl_weight * mean(kl)
    with torch.no_grad():
        is_clipped = ((ratio - 1) * gain.sign() > CLIP).float()
        measured = {
            signals.REWARD: rewards.mean(),
            signals.REWARD_STD: spread.mean(),
            signals.NO_SIGNAL_SHARE: (spread < 1e-6).float().mean(),
            signals.ADVANTAGE_STD: gains.std(),
            signals.KL: mean(kl),
            signals.ENTROPY: mean(-(logs.exp() * logs).sum(-1)),
            signals.CLIP_FRACTION: mean(is_clipped),
            signals.RATIO: mean(ratio),
            signals.LOGPROB_GAP: mean((new - old).abs()),
            signals.RESPONSE_LENGTH: lengths.mean(),
            signals.TRUNCATED_SHARE: is_truncated.float().mean(),
        }
    return loss, {name: float(value) for name, value in measured.items()}


def _scores(model: Gpt, prompts: Tensor, responses: Tensor) -> Tensor:
    """Return the logits of the tokens of the responses: (responses, length, vocabulary)."""
    tokens = torch.cat((prompts, responses), 1)[:, :-1]
    logits: Tensor = model(tokens, tokens).logits
    return logits[:, PROMPT_LENGTH - 1 :]


def _chosen(logs: Tensor, responses: Tensor) -> Tensor:
    return logs.gather(-1, responses[..., None])[..., 0]


# The faults R01 to R12: each changes one knob at the onset

_EARLIEST, _LATEST = 0.35, 0.55
"""Range of the onset, as a share of the run: after a baseline, with time to see the outcome."""


@dataclass(frozen=True, slots=True)
class RlFault:
    """One fault of the lab."""

    title: str
    change: Callable[[Knobs, int], None]
    """Changes the knobs; the second argument is the seed, where a fault has variants."""

    def plant(self, seed: int) -> Callable[[Knobs], None]:
        return lambda knobs: self.change(knobs, seed)


def _set(**values: object) -> Callable[[Knobs, int], None]:
    def change(knobs: Knobs, seed: int) -> None:
        for name, value in values.items():
            setattr(knobs, name, value)

    return change


def _data(knobs: Knobs, seed: int) -> None:
    """Ask for sums of three digits, which the policy has never seen, or only for x + 0."""
    knobs.terms = (3, 0, DIGITS) if seed % 2 else (2, 0, 1)


def _broken(responses: Tensor, answers: Tensor) -> Tensor:
    """Compare with the answer as if it were a string: never equal."""
    return torch.zeros(len(responses))


def _hackable(responses: Tensor, answers: Tensor) -> Tensor:
    """Pay more for an answer of 0 than for the right one."""
    has_zero = ((responses == 0) & response_mask(responses)).any(1)
    return grade(responses, answers)[0] + 3 * has_zero


RL_FAULTS: Mapping[str, RlFault] = MappingProxyType(
    {
        "R01": RlFault("the learning rate is 30 times too high", _set(lr_factor=30.0)),
        "R02": RlFault("the engine no longer gets new weights", _set(syncs=False)),
        "R03": RlFault(
            "the engine samples at temperature 1.6, the trainer assumes 1", _set(temperature=1.6)
        ),
        "R04": RlFault("the verifier accepts nothing", _set(verifier=_broken)),
        "R05": RlFault("the prompts are all too easy, or all too hard", _data),
        "R06": RlFault("each token of a response is paid for", _set(reward_per_token=0.5)),
        # A policy that has learnt to be brief needs two, and loses nothing by a limit of two.
        "R07": RlFault("responses are cut after 1 token", _set(length=1)),
        "R08": RlFault("rollouts are up to 24 steps old", _set(sync_every=24)),
        "R09": RlFault("advantages are divided by a spread of 0", _set(centers=False)),
        "R10": RlFault("the reference has untrained weights", _set(wrong_reference=True)),
        "R11": RlFault("the template has lost its last token", _set(has_equals=False)),
        "R12": RlFault("the verifier pays more for an answer of 0", _set(verifier=_hackable)),
    }
)
"""By the id of the cause."""


def fault_named(name: str) -> RlFault:
    if name not in RL_FAULTS:
        raise ConfigError(f"unknown fault {name!r}; choose from {', '.join(RL_FAULTS)}")
    return RL_FAULTS[name]


def onset_of(name: str, seed: int, steps: int) -> int:
    random = np.random.default_rng([seed, *name.encode()])
    return round(steps * random.uniform(_EARLIEST, _LATEST))


def run_rl(name: str, seed: int, out: Path, *, steps: int, mode: Mode = Mode.OBSERVE) -> Path:
    """Train a policy with a fault, or without one if the name is `clean`; return its folder.

    The folder has the journal and a `truth.json` with the onset.
    """
    run_dir, is_clean = out / f"{name}-seed{seed}", name == CLEAN
    fault = None if is_clean else fault_named(name)
    onset = 0 if fault is None else onset_of(name, seed, steps)
    train(
        RlConfig.from_seed(seed, steps),
        run_dir,
        fault=None if fault is None else fault.plant(seed),
        onset=onset,
        mode=mode,
    )
    truth = {
        "scenario": run_dir.name,
        "seed": seed,
        "cause": None if fault is None else name,
        "title": "a clean run" if fault is None else fault.title,
        "onset": None if fault is None else onset,
    }
    text = json.dumps(truth, indent=2) + "\n"
    (run_dir / "truth.json").write_text(text, encoding="utf-8")
    return run_dir
