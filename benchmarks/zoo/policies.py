"""Preferences and reinforcement: targets that move, losses of 0, rare rewards."""

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.distributions import Categorical
from torch.nn import functional

from benchmarks.zoo.kinds import CLASSES, FEATURES, Setup, adam, kind
from benchmarks.zoo.session import Session, mlp


@kind("DPO, small batches")
def dpo(session: Session) -> Setup:
    model, reference = mlp(FEATURES, CLASSES), mlp(FEATURES, CLASSES)
    reference.load_state_dict(model.state_dict())
    taste = session.normal(FEATURES, CLASSES)

    def loss(number: int) -> Any:
        data = session.normal(8, FEATURES)
        pairs = torch.stack((session.pick(CLASSES, 8), session.pick(CLASSES, 8)), 1)
        worth = (data @ taste).gather(1, pairs)
        better = worth.argmax(1, keepdim=True)
        with torch.no_grad():
            before = reference(data).log_softmax(1).gather(1, pairs)
        gain = model(data).log_softmax(1).gather(1, pairs) - before
        return -functional.logsigmoid(gain.gather(1, better) - gain.gather(1, 1 - better)).mean()

    return Setup(adam(model, lr=5e-4), loss, clip=1.0)


@kind("GRPO with a KL term")
def grpo_kl(session: Session) -> Setup:
    model = nn.Sequential(nn.Embedding(32, 16), mlp(16, 12))
    answers = session.pick(12, 32)

    def loss(number: int) -> Any:
        asked = session.pick(32, 8)
        scores = model(asked).log_softmax(1)
        tries = torch.multinomial(
            scores.detach().exp(), 8, replacement=True, generator=session.generator
        )
        reward = (tries == answers[asked][:, None]).float()
        gain = (reward - reward.mean(1, keepdim=True)) / (reward.std(1, keepdim=True) + 1e-4)
        chosen = scores.gather(1, tries)
        kl = (scores.exp() * (scores + math.log(12))).sum(1).mean()
        return -((chosen - chosen.detach()).exp() * gain).mean() + 0.02 * kl

    return Setup(adam(model, lr=2e-3), loss, clip=1.0)


class CartPole:
    """A pole on a cart, pushed left or right; a reward of 1 for each step that it stands."""

    LONGEST = 300

    def __init__(self, seed: int) -> None:
        self._dice = np.random.default_rng([seed, 2])
        self.state = self.reset()

    def reset(self) -> Tensor:
        self._steps = 0
        self._at = self._dice.uniform(-0.05, 0.05, 4)
        self.state = floats(self._at)
        return self.state

    def step(self, action: int) -> tuple[Tensor, bool, bool]:
        """The next state, whether the pole fell, whether the episode is over."""
        _, speed, angle, spin = self._at
        sine, cosine = math.sin(angle), math.cos(angle)
        push = ((10.0 if action else -10.0) + 0.05 * spin**2 * sine) / 1.1
        turn = (9.8 * sine - cosine * push) / (0.5 * (4 / 3 - 0.1 * cosine**2 / 1.1))
        pull = push - 0.05 * turn * cosine / 1.1
        self._at = self._at + 0.02 * np.array([speed, pull, spin, turn])
        self._steps += 1
        fell = abs(self._at[0]) > 2.4 or abs(self._at[2]) > 0.209
        self.state = floats(self._at)
        return self.state, fell, fell or self._steps >= self.LONGEST


def floats(values: object) -> Tensor:
    return torch.as_tensor(np.asarray(values), dtype=torch.float32)


@kind("DQN")
def dqn(session: Session) -> Setup:
    """Each copy of the target network is a new level of the loss."""
    values, target, world = mlp(4, 2), mlp(4, 2), CartPole(session.seed)
    target.load_state_dict(values.state_dict())

    def play() -> Iterator[Tensor]:
        seen: list[tuple[Tensor, int, Tensor, bool]] = []
        for number in range(10**6):
            state = world.state
            with torch.no_grad():
                action = int(values(state).argmax())
            if session.dice.random() < max(0.05, 1 - number / 1000):
                action = int(session.dice.integers(2))
            following, fell, is_over = world.step(action)
            seen = [*seen[-4999:], (state, action, following, fell)]
            if is_over:
                world.reset()
            if len(seen) < 200:
                continue
            rows = [seen[at] for at in session.dice.integers(len(seen), size=32)]
            before, actions, after, ends = zip(*rows, strict=True)
            with torch.no_grad():
                best = 1 + 0.99 * target(torch.stack(after)).max(1).values * (1 - floats(ends))
            chosen = values(torch.stack(before)).gather(1, torch.tensor(actions)[:, None])[:, 0]
            yield functional.smooth_l1_loss(chosen, best)
            if number % 500 == 0:
                target.load_state_dict(values.state_dict())

    losses = play()
    return Setup(torch.optim.Adam(values.parameters(), lr=1e-3), lambda number: next(losses))


@kind("PPO")
def ppo(session: Session, length: int = 256) -> Setup:
    policy, critic, world = mlp(4, 2), mlp(4, 1), CartPole(session.seed)

    def rollout() -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        states, actions, old, ends = [], [], [], []
        with torch.no_grad():
            for _ in range(length):
                states.append(world.state)
                choice = Categorical(logits=policy(world.state))
                actions.append(torch.multinomial(choice.probs, 1, generator=session.generator)[0])
                old.append(choice.log_prob(actions[-1]))
                ends.append(world.step(int(actions[-1]))[2])
                if ends[-1]:
                    world.reset()
            level = critic(torch.stack([*states, world.state]))[:, 0].tolist()
        gains, running = np.zeros(length), 0.0
        for at in reversed(range(length)):
            goes_on = 1.0 - ends[at]
            surprise = 1.0 + 0.99 * level[at + 1] * goes_on - level[at]
            running = gains[at] = surprise + 0.99 * 0.95 * goes_on * running
        wanted = floats(gains) + floats(level[:-1])
        return torch.stack(states), torch.stack(actions), torch.stack(old), floats(gains), wanted

    def play() -> Iterator[Tensor]:
        while True:
            states, actions, old, gains, wanted = rollout()
            for _ in range(8):
                for rows in torch.randperm(length, generator=session.generator).chunk(4):
                    choice = Categorical(logits=policy(states[rows]))
                    ratio = (choice.log_prob(actions[rows]) - old[rows]).exp()
                    gain = (gains[rows] - gains[rows].mean()) / (gains[rows].std() + 1e-8)
                    gained = torch.min(ratio * gain, ratio.clamp(0.8, 1.2) * gain).mean()
                    off = (critic(states[rows])[:, 0] - wanted[rows]).square().mean()
                    yield 0.5 * off - gained - 0.01 * choice.entropy().mean()

    parameters = [*policy.parameters(), *critic.parameters()]
    losses = play()
    return Setup(torch.optim.Adam(parameters, lr=3e-4), lambda number: next(losses), clip=0.5)


@kind("REINFORCE")
def reinforce(session: Session) -> Setup:
    """A sum over an episode, so loss and norm grow with the return."""
    policy, world = mlp(4, 2), CartPole(session.seed)

    def loss(number: int) -> Any:
        state, is_over, scores = world.reset(), False, []
        while not is_over:
            choice = policy(state).log_softmax(0)
            action = torch.multinomial(choice.detach().exp(), 1, generator=session.generator)
            scores.append(choice[action])
            state, _, is_over = world.step(int(action))
        return -(torch.cat(scores) * torch.arange(len(scores), 0, -1).float()).sum()

    return Setup(torch.optim.Adam(policy.parameters(), lr=3e-3), loss, clip=1.0)
