"""Regression with heavy tails, a differential equation, outliers, training at the edge."""

from functools import partial

import torch
from torch import nn
from torch.nn import functional

from benchmarks.gate.kinds.registry import add
from benchmarks.gate.session import Session, adamw, mean, mlp


def heavy_tails(session: Session, *, pareto: bool) -> float:
    """Targets with noise of infinite variance."""
    model = mlp(8, 1)
    optimizer = adamw(model)
    for _ in range(5000):
        inputs = session.normal(16, 8)
        if pareto:
            noise = session.dice.pareto(1.5, 16)
        else:
            noise = 0.3 * session.dice.standard_t(2, 16)
        targets = inputs.sum(1) + torch.tensor(noise).float()
        lose = functional.smooth_l1_loss if pareto else functional.mse_loss
        session.step(optimizer, lose(model(inputs)[:, 0], targets), clip=1.0)
    inputs = torch.randn(4000, 8, generator=torch.Generator().manual_seed(777))
    with torch.no_grad():
        # The median of Pareto noise moves every target by the same amount.
        error = model(inputs)[:, 0] - inputs.sum(1)
        return float((error - error.median()).abs().mean())


def outlier_inputs(session: Session) -> float:
    """One batch in 200 has inputs ten times as large, with targets to match."""
    model = mlp(8, 1)
    optimizer = adamw(model)
    for _ in range(5000):
        size = 10.0 if session.dice.random() < 0.005 else 1.0
        inputs = size * session.normal(16, 8)
        loss = functional.mse_loss(model(inputs)[:, 0], inputs.abs().sum(1))
        session.step(optimizer, loss)
    inputs = 10.0 * torch.randn(4000, 8, generator=torch.Generator().manual_seed(777))
    with torch.no_grad():
        return float((model(inputs)[:, 0] - inputs.abs().sum(1)).abs().mean())


def differential_equation(session: Session) -> float:
    """A network that is to satisfy u'' = -16 sin(4 x)."""
    layers = (nn.Linear(1, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 1))
    model = nn.Sequential(*layers)
    optimizer = adamw(model)
    losses = []
    for _ in range(3000):
        place = session.uniform(16, 1).requires_grad_()
        first = torch.autograd.grad(model(place).sum(), place, create_graph=True)[0]
        second = torch.autograd.grad(first.sum(), place, create_graph=True)[0]
        inside = (second + 16 * torch.sin(4 * place)).square().mean()
        loss = 0.01 * inside + model(torch.zeros(1, 1)).square().sum()
        session.step(optimizer, loss, clip=1.0)
        losses.append(float(loss.detach()))
    return mean(losses[-500:])


def edge_of_stability(session: Session) -> float:
    """Full-batch gradient descent with a large rate: the loss rises in bursts and comes back."""
    inputs = session.normal(256, 8)
    targets = torch.sin(inputs.sum(1))
    model = mlp(8, 1, width=32)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.35)
    losses = []
    for _ in range(4000):
        loss = functional.mse_loss(model(inputs)[:, 0], targets)
        session.step(optimizer, loss)
        losses.append(float(loss.detach()))
    return mean(losses[-500:])


def two_tasks(session: Session) -> float:
    """Every fiftieth step is a second task whose loss is twenty times as large."""
    model = mlp(8, 2)
    optimizer = adamw(model)
    for number in range(5000):
        inputs = session.normal(16, 8)
        outputs = model(inputs)
        if number % 50 == 49:
            loss = 20 * functional.mse_loss(outputs[:, 1], 3 * inputs[:, :4].prod(1))
        else:
            loss = functional.mse_loss(outputs[:, 0], inputs.sum(1))
        session.step(optimizer, loss)
    inputs = torch.randn(8000, 8, generator=torch.Generator().manual_seed(777))
    with torch.no_grad():
        return float((model(inputs)[:, 1] - 3 * inputs[:, :4].prod(1)).abs().mean())


def factorization(session: Session) -> float:
    """Matrix factorization of few ratings by plain SGD, one user at a time."""
    users, items, width = 200, 100, 8
    truth = session.normal(users, width) @ session.normal(width, items) / width**0.5
    is_seen = session.uniform(users, items) < 0.3
    ours = nn.Parameter(0.1 * session.normal(users, width))
    theirs = nn.Parameter(0.1 * session.normal(items, width))
    optimizer = torch.optim.SGD([ours, theirs], lr=0.3)
    for _ in range(5000):
        user = int(session.pick(users, 1))
        rated = is_seen[user]
        loss = functional.mse_loss(theirs[rated] @ ours[user], truth[user, rated])
        session.step(optimizer, loss)
    with torch.no_grad():
        return float((ours @ theirs.T - truth)[~is_seen].square().mean())


add("regression, t(2) noise", "error on clean targets", partial(heavy_tails, pareto=False))
add("regression, Pareto noise", "error on clean targets", partial(heavy_tails, pareto=True))
add("regression, 0.5 % large inputs", "error on large inputs", outlier_inputs)
add("differential equation", "loss of the last 500 steps", differential_equation)
add("gradient descent at a large rate", "loss of the last 500 steps", edge_of_stability)
add("two tasks, the second every 50 steps", "error of the second", two_tasks)
add("matrix factorization, batch 1", "error on unseen ratings", factorization)
