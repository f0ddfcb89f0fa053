"""GANs, diffusion, auto-encoders, contrastive and self-supervised learning."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.zoo.kinds import FEATURES, Setup, adam, kind, points
from benchmarks.zoo.session import Session, mlp


@kind("VAE, KL warm-up")
def vae(session: Session) -> Setup:
    data, _ = points(session)
    encoder, decoder = mlp(FEATURES, 8), mlp(4, FEATURES)

    def loss(number: int) -> Any:
        batch = data[session.pick(len(data), 32)]
        middle, spread = encoder(batch).chunk(2, 1)
        hidden = middle + session.normal(32, 4) * (spread / 2).exp()
        kl = -0.5 * (1 + spread - middle**2 - spread.exp()).sum(1).mean()
        error = (decoder(hidden) - batch).square().sum(1).mean()
        return error + min(1.0, number / 600) * kl

    return Setup(adam(encoder, decoder), loss)


@kind("contrastive, learned temperature, batch 16")
def clip_loss(session: Session) -> Setup:
    mix = session.normal(8, FEATURES)
    first, second = mlp(FEATURES, 16), mlp(FEATURES, 16)
    scale = nn.Parameter(torch.tensor(2.6))
    optimizer = torch.optim.AdamW([*first.parameters(), *second.parameters(), scale], 1e-3)

    def loss(number: int) -> Any:
        hidden = session.normal(16, 8) @ mix
        one = functional.normalize(first(hidden + 0.5 * session.normal(16, FEATURES)), dim=1)
        two = functional.normalize(second(hidden + 0.5 * session.normal(16, FEATURES)), dim=1)
        return functional.cross_entropy(scale.exp() * one @ two.T, torch.arange(16))

    return Setup(optimizer, loss)


@kind("normalizing flow, negative likelihood")
def flow(session: Session) -> Setup:
    """The loss passes through 0 and falls below it."""
    nets = nn.ModuleList([mlp(2, 4, width=48) for _ in range(4)])

    def loss(number: int) -> Any:
        value = 0.15 * session.normal(64, 4) + session.pick(3, 64)[:, None].float() / 4
        total = torch.zeros(64)
        for place, net in enumerate(nets):
            kept, moved = value.chunk(2, 1)[:: 1 if place % 2 else -1]
            scale, shift = net(kept).chunk(2, 1)
            scale = 2 * scale.tanh()
            value = torch.cat((kept, moved * scale.exp() + shift), 1)
            total = total + scale.sum(1)
        return (0.5 * value.square().sum(1) - total).mean()

    return Setup(adam(nets), loss, clip=5.0)


@kind("Gaussian likelihood with learned spread")
def spread(session: Session) -> Setup:
    model = mlp(4, 2)

    def loss(number: int) -> Any:
        data = session.normal(32, 4)
        wanted = data.sum(1) + 0.1 * data[:, 0].exp() * session.normal(32)
        middle, log_spread = model(data).unbind(1)
        return (log_spread + 0.5 * ((wanted - middle) / log_spread.exp()).square()).mean()

    return Setup(adam(model), loss, clip=5.0)


def _gan(session: Session, kind_: str) -> Setup:
    maker, critic = mlp(8, 2), mlp(2, 1)
    of_maker = torch.optim.Adam(maker.parameters(), 3e-4, betas=(0.5, 0.99))
    of_critic = torch.optim.Adam(critic.parameters(), 3e-4, betas=(0.5, 0.99))

    def real(count: int) -> Tensor:
        angle = 6.28 * session.uniform(count)
        return 2 * torch.stack((angle.cos(), angle.sin()), 1) + 0.05 * session.normal(count, 2)

    def loss(number: int) -> Any:
        fake = maker(session.normal(64, 8)).detach()
        data = real(64).requires_grad_()
        if kind_ == "least squares":
            return (critic(data) - 1).square().mean() + critic(fake).square().mean()
        good, bad = critic(data), critic(fake)
        if kind_ == "wasserstein":
            share = session.uniform(64, 1)
            between = (share * data.detach() + (1 - share) * fake).requires_grad_()
            (slope,) = torch.autograd.grad(critic(between).sum(), between, create_graph=True)
            return bad.mean() - good.mean() + 10 * (slope.norm(dim=1) - 1).square().mean()
        found: Tensor = functional.softplus(-good).mean() + functional.softplus(bad).mean()
        if kind_ == "lazy penalty" and number % 16 == 0:
            (slope,) = torch.autograd.grad(good.sum(), data, create_graph=True)
            found = found + 80 * slope.square().sum(1).mean()
        return found

    def after(number: int) -> None:
        judged = critic(maker(session.normal(64, 8)))
        back = -judged if kind_ == "wasserstein" else functional.softplus(-judged)
        back = (judged - 1).square() if kind_ == "least squares" else back
        of_maker.zero_grad()
        back.mean().backward()
        of_maker.step()

    return Setup(of_critic, loss, after=after)


kind("GAN, least squares, critic")(lambda session: _gan(session, "least squares"))
kind("GAN, penalty every 16 steps")(lambda session: _gan(session, "lazy penalty"))
kind("GAN, no penalty, critic")(lambda session: _gan(session, "plain"))
kind("GAN, wasserstein, gate on critic")(lambda session: _gan(session, "wasserstein"))


@kind("diffusion, batch 4")
def diffusion(session: Session) -> Setup:
    """Noise levels over three decades, weighted towards the small ones."""
    model = mlp(3, 2, hidden=3)

    def loss(number: int) -> Any:
        clean = 1 + 0.1 * session.normal(4, 2)
        level = 0.01 * 1000 ** session.uniform(4, 1)
        noise = session.normal(4, 2)
        found = model(torch.cat(((clean + level * noise) / (1 + level), level.log()), dim=1))
        return 0.01 * ((found - noise).square() / (level**2 + 0.01)).mean()

    return Setup(adam(model), loss, clip=1.0)
