"""Reinforcement learning: targets that move, losses of 0, rare rewards."""

import math
from functools import partial

import numpy as np
import torch
from torch import Tensor, nn
from torch.distributions import Categorical
from torch.nn import functional

from benchmarks.gate.kinds.registry import add
from benchmarks.gate.session import Session, adamw, mean, mlp

Floats = np.ndarray


class CartPole:
    """A pole on a cart, pushed left or right; a reward of 1 for each step that it stands."""

    LONGEST = 300

    def __init__(self, seed: int) -> None:
        self._dice = np.random.default_rng([seed, 2])
        self.state = self.reset()

    def reset(self) -> Floats:
        self._steps = 0
        self.state = self._dice.uniform(-0.05, 0.05, 4)
        return self.state

    def step(self, action: int) -> tuple[Floats, bool, bool]:
        """The next state, whether the pole fell, whether the episode is over."""
        _, speed, angle, spin = self.state
        sine, cosine = math.sin(angle), math.cos(angle)
        push = ((10.0 if action else -10.0) + 0.05 * spin**2 * sine) / 1.1
        turn = (9.8 * sine - cosine * push) / (0.5 * (4 / 3 - 0.1 * cosine**2 / 1.1))
        pull = push - 0.05 * turn * cosine / 1.1
        self.state = self.state + 0.02 * np.array([speed, pull, spin, turn])
        self._steps += 1
        fell = abs(self.state[0]) > 2.4 or abs(self.state[2]) > 0.209
        return self.state, fell, fell or self._steps >= self.LONGEST


def floats(values: object) -> Tensor:
    return torch.as_tensor(np.asarray(values), dtype=torch.float32)


def dqn(session: Session, steps: int = 6000) -> float:
    """Each copy of the target network is a new level of the loss."""
    values, target = mlp(4, 2), mlp(4, 2)
    target.load_state_dict(values.state_dict())
    optimizer = torch.optim.Adam(values.parameters(), lr=1e-3)
    world = CartPole(session.seed)
    state, seen, returns = world.reset(), [], [0]
    for number in range(steps):
        if session.dice.random() < max(0.05, 1 - number / 2500):
            action = int(session.dice.integers(2))
        else:
            with torch.no_grad():
                action = int(values(floats(state)).argmax())
        following, fell, is_over = world.step(action)
        seen.append((state, action, following, fell))
        seen = seen[-5000:]
        returns[-1] += 1
        state = following
        if is_over:
            state = world.reset()
            returns.append(0)
        if len(seen) < 200:
            continue
        before, actions, after, ends = zip(
            *(seen[place] for place in session.dice.integers(len(seen), size=32)), strict=True
        )
        with torch.no_grad():
            best = 1 + 0.99 * target(floats(after)).max(1).values * (1 - floats(ends))
        chosen = values(floats(before)).gather(1, torch.tensor(actions)[:, None])[:, 0]
        session.step(optimizer, functional.smooth_l1_loss(chosen, best))
        if number % 500 == 0:
            target.load_state_dict(values.state_dict())
    return mean(_greedy_return(values, seed) for seed in range(10))


def _greedy_return(policy: nn.Module, seed: int) -> float:
    world = CartPole(10_000 + seed)
    state = world.reset()
    for steps in range(1, CartPole.LONGEST + 1):
        with torch.no_grad():
            state, _, is_over = world.step(int(policy(floats(state)).argmax()))
        if is_over:
            return steps
    return CartPole.LONGEST


def ppo(session: Session, rounds: int = 100, length: int = 256) -> float:
    policy, critic = mlp(4, 2), mlp(4, 1)
    optimizer = torch.optim.Adam([*policy.parameters(), *critic.parameters()], lr=3e-4)
    world = CartPole(session.seed)
    state = world.reset()
    for _ in range(rounds):
        states, ends = [], []
        actions, old = [], []
        with torch.no_grad():
            for _ in range(length):
                states.append(floats(state))
                choice = Categorical(logits=policy(states[-1]))
                action = torch.multinomial(choice.probs, 1, generator=session.generator)[0]
                actions.append(action)
                old.append(choice.log_prob(action))
                state, _, is_over = world.step(int(action))
                ends.append(is_over)
                if is_over:
                    state = world.reset()
            batch = torch.stack(states)
            level = [*critic(batch)[:, 0].tolist(), float(critic(floats(state)))]
        advantages, running = np.zeros(length), 0.0
        for place in reversed(range(length)):
            goes_on = 1.0 - ends[place]
            surprise = 1.0 + 0.99 * level[place + 1] * goes_on - level[place]
            running = surprise + 0.99 * 0.95 * goes_on * running
            advantages[place] = running
        gains = floats(advantages)
        wanted = gains + floats(level[:-1])
        taken, before = torch.stack(actions), torch.stack(old)
        for _ in range(8):
            for rows in torch.randperm(length, generator=session.generator).chunk(4):
                choice = Categorical(logits=policy(batch[rows]))
                ratio = (choice.log_prob(taken[rows]) - before[rows]).exp()
                gain = (gains[rows] - gains[rows].mean()) / (gains[rows].std() + 1e-8)
                gained = torch.min(ratio * gain, ratio.clamp(0.8, 1.2) * gain).mean()
                off = (critic(batch[rows])[:, 0] - wanted[rows]).square().mean()
                loss = 0.5 * off - gained - 0.01 * choice.entropy().mean()
                session.step(optimizer, loss, clip=0.5)
    return mean(_greedy_return(policy, seed) for seed in range(10))


def grpo(session: Session, prompts: int, steps: int) -> float:
    """One update per rollout: the loss is 0 but for rounding, solved prompts have no gradient."""
    model = nn.Sequential(nn.Embedding(prompts, 16), mlp(16, 12))
    optimizer = adamw(model, lr=3e-3)
    answers = session.pick(12, prompts)
    for _ in range(steps):
        asked = session.pick(prompts, 4)
        scores = model(asked).log_softmax(1)
        tries = torch.multinomial(
            scores.detach().exp(), 8, replacement=True, generator=session.generator
        )
        reward = (tries == answers[asked][:, None]).float()
        spread = reward.std(1, keepdim=True) + 1e-4
        advantage = (reward - reward.mean(1, keepdim=True)) / spread
        chosen = scores.gather(1, tries)
        loss = -((chosen - chosen.detach()).exp() * advantage).mean()
        session.step(optimizer, loss, clip=1.0)
    with torch.no_grad():
        probabilities = model(torch.arange(prompts)).softmax(1)
        return float(probabilities[torch.arange(prompts), answers].mean())


def reinforce(session: Session, episodes: int = 500) -> float:
    """A sum over an episode, so loss and norm grow with the return."""
    policy = mlp(4, 2)
    optimizer = torch.optim.Adam(policy.parameters(), lr=3e-3)
    world = CartPole(session.seed)
    lengths = []
    for _ in range(episodes):
        state, is_over, scores = world.reset(), False, []
        while not is_over:
            choice = policy(floats(state)).log_softmax(0)
            action = torch.multinomial(choice.detach().exp(), 1, generator=session.generator)
            scores.append(choice[action])
            state, _, is_over = world.step(int(action))
        lengths.append(len(scores))
        to_come = torch.arange(len(scores), 0, -1).float()
        session.step(optimizer, -(torch.cat(scores) * to_come).sum(), clip=1.0)
    return mean(lengths[-100:])


def jackpot(session: Session, arms: int = 6, steps: int = 5000) -> float:
    """A contextual bandit; in one context of 100 the right arm pays 50 times as much."""
    policy = mlp(8, arms)
    optimizer = adamw(policy, lr=1e-3)
    truth = session.normal(8, arms)
    lucky = session.normal(8, arms)
    baseline = 0.0

    def contexts(count: int, share: float) -> tuple[Tensor, Tensor]:
        inputs = session.normal(count, 8)
        is_lucky = session.uniform(count) < share
        inputs[is_lucky, 0] = 6.0
        pays = torch.where(is_lucky[:, None], 50 * (inputs @ lucky), inputs @ truth)
        return inputs, pays

    for _ in range(steps):
        inputs, pays = contexts(8, 0.01)
        scores = policy(inputs).log_softmax(1)
        tries = torch.multinomial(scores.detach().exp(), 1, generator=session.generator)
        reward = pays.gather(1, tries)
        loss = -(scores.gather(1, tries) * (reward - baseline)).mean()
        baseline = 0.99 * baseline + 0.01 * float(reward.clamp(-3, 3).mean())
        session.step(optimizer, loss)
    with torch.no_grad():
        inputs, pays = contexts(2000, 1.0)
        return float(pays.gather(1, policy(inputs).argmax(1, keepdim=True)).mean())


add("DQN", "return", dqn, higher_is_better=True)
add("PPO", "return", ppo, higher_is_better=True)
for _prompts, _steps in ((8, 3000), (64, 5000)):
    add(
        f"GRPO, {_prompts} prompts",
        "probability of the answer",
        partial(grpo, prompts=_prompts, steps=_steps),
        higher_is_better=True,
    )
add("REINFORCE", "return", reinforce, higher_is_better=True)
add("bandit with a jackpot in 1 %", "pay in that 1 %", jackpot, higher_is_better=True)
