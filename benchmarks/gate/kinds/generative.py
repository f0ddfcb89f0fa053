"""GANs, a VAE, diffusion."""

import math
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.gate.kinds.classification import FEATURES, clusters
from benchmarks.gate.kinds.registry import add
from benchmarks.gate.session import Session, adamw, mean, mlp, plain_step

MODES, NOISE = 8, 8


def gan(session: Session, loss_kind: str, watched: str) -> float:
    """Eight points on a circle; either optimizer is watched, or both by one gate."""
    angles = torch.arange(MODES) * (2 * math.pi / MODES)
    centres = 2 * torch.stack((angles.cos(), angles.sin()), dim=1)
    generator, critic = mlp(NOISE, 2), mlp(2, 1)
    of_generator, of_critic = (
        torch.optim.Adam(module.parameters(), lr=2e-4, betas=(0.5, 0.9))
        for module in (generator, critic)
    )
    for _ in range(4000):
        real = centres[session.pick(MODES, 64)] + 0.05 * session.normal(64, 2)
        fake = generator(session.normal(64, NOISE))
        loss = _critic_loss(session, loss_kind, critic, real, fake.detach())
        take = session.step if watched in ("critic", "both") else plain_step
        take(of_critic, loss)
        judged = critic(fake)
        loss = functional.softplus(-judged).mean() if loss_kind == "bce" else -judged.mean()
        take = session.step if watched in ("generator", "both") else plain_step
        take(of_generator, loss)
    with torch.no_grad():
        made = generator(torch.randn(2000, NOISE, generator=torch.Generator().manual_seed(777)))
        nearest = torch.cdist(made, centres).min(dim=1)
        shares = torch.bincount(nearest.indices, minlength=MODES) / 2000
        # Points off the modes, and modes that are left out.
        return float(nearest.values.mean() + (shares - 1 / MODES).abs().sum())


def _critic_loss(
    session: Session, kind: str, critic: nn.Module, real: Tensor, fake: Tensor
) -> Tensor:
    if kind == "bce":
        return functional.softplus(-critic(real)).mean() + functional.softplus(critic(fake)).mean()
    if kind == "hinge":
        return functional.relu(1 - critic(real)).mean() + functional.relu(1 + critic(fake)).mean()
    share = session.uniform(len(real), 1)
    between = (share * real + (1 - share) * fake).requires_grad_()
    slope = torch.autograd.grad(critic(between).sum(), between, create_graph=True)[0]
    penalty = 10 * (slope.norm(dim=1) - 1).square().mean()
    loss: Tensor = critic(fake).mean() - critic(real).mean() + penalty
    return loss


def vae(session: Session) -> float:
    """The weight of the KL term runs in cycles."""
    points, _, _ = clusters(session.seed, 4000)
    encoder, decoder = mlp(FEATURES, 8), mlp(4, FEATURES)
    optimizer = adamw(nn.ModuleList([encoder, decoder]))
    losses = []
    for number in range(4500):
        batch = points[session.pick(len(points), 32)]
        middle, log_variance = encoder(batch).chunk(2, dim=1)
        hidden = middle + session.normal(*middle.shape) * (log_variance / 2).exp()
        kl = -0.5 * (1 + log_variance - middle**2 - log_variance.exp()).sum(1).mean()
        weight = min(1.0, (number % 1500) / 750)
        loss = functional.mse_loss(decoder(hidden), batch) + 0.1 * weight * kl
        session.step(optimizer, loss, clip=1.0)
        losses.append(float(loss.detach()))
    return mean(losses[-500:])


def diffusion(session: Session) -> float:
    """Batches of 4 at noise levels over three decades, weighted towards the small ones."""
    model = mlp(3, 2, hidden=3)
    optimizer = adamw(model)
    losses = []
    for _ in range(5000):
        clean = 1 + 0.1 * session.normal(4, 2)
        level = 0.01 * 1000 ** session.uniform(4, 1)
        noise = session.normal(4, 2)
        noisy = (clean + level * noise) / (1 + level)
        found = model(torch.cat((noisy, level.log()), dim=1))
        loss = 0.01 * ((found - noise).square() / (level**2 + 0.01)).mean()
        session.step(optimizer, loss, clip=1.0)
        losses.append(float(loss.detach()))
    return mean(losses[-1000:])


for _kind, _watched in (
    ("bce", "critic"),
    ("hinge", "generator"),
    ("bce", "both"),
    ("wasserstein", "critic"),
    ("wasserstein", "both"),
):
    add(
        f"GAN, {_kind}, gate on {_watched}",
        "distance from the modes",
        partial(gan, loss_kind=_kind, watched=_watched),
    )
add("VAE with cyclic KL", "loss of the last 500 steps", vae)
add("diffusion, batch 4", "loss of the last 1,000 steps", diffusion)
