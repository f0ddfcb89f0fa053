"""Healthy runs of many kinds, beside the 47 of `benchmarks.gate.kinds`.

Each is a function that makes a model, an optimizer and the loss of the next batch; all are trained
by one loop. They are real optimisations of small models, and all of them learn.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributions import Categorical, Normal
from torch.nn import functional
from torch.optim import lr_scheduler

from benchmarks.gate.kinds.sequences import LanguageModel, loss_on, markov, windows
from benchmarks.gate.session import Session, mlp

STEPS = 1500
CLASSES, FEATURES = 10, 32


@dataclass
class Setup:
    """What a kind trains."""

    optimizer: torch.optim.Optimizer
    next_loss: Callable[[int], Tensor]
    clip: float | None = None
    schedule: Any = None
    accumulate: int = 1
    after: Callable[[int], None] = lambda number: None
    """Called after each step."""


MAKERS: dict[str, Callable[[Session], Setup]] = {}


def kind(name: str) -> Callable[[Callable[[Session], Setup]], Callable[[Session], Setup]]:
    """Register a kind."""

    def register(make: Callable[[Session], Setup]) -> Callable[[Session], Setup]:
        MAKERS[name] = make
        return make

    return register


def train(name: str, session: Session) -> None:
    """Train a kind."""
    setup = MAKERS[name](session)
    for number in range(STEPS):
        losses = [setup.next_loss(number * setup.accumulate + k) for k in range(setup.accumulate)]
        loss = losses[0] if len(losses) == 1 else torch.stack(losses).mean()
        session.step(setup.optimizer, loss, clip=setup.clip)
        if setup.schedule is not None:
            setup.schedule.step()
        setup.after(number)


# Data and models that several kinds share.


def points(
    session: Session, count: int = 4000, classes: int = CLASSES, noise: float = 0.02, size: int = 32
) -> tuple[Tensor, Tensor]:
    centres = session.normal(classes, size)
    labels = session.pick(classes, count)
    data = centres[labels] + session.normal(count, size)
    wrong = session.uniform(count) < noise
    return data, torch.where(wrong, session.pick(classes, count), labels)


def images(session: Session, count: int = 1000) -> tuple[Tensor, Tensor]:
    """Pictures of 8 x 8 with one of ten textures."""
    textures = session.normal(CLASSES, 1, 8, 8)
    labels = session.pick(CLASSES, count)
    return textures[labels] + 0.8 * session.normal(count, 1, 8, 8), labels


def cnn(width: int = 8) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(1, width, 3, padding=1),
        nn.BatchNorm2d(width),
        nn.ReLU(),
        nn.Conv2d(width, width, 3, stride=2, padding=1),
        nn.BatchNorm2d(width),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(16 * width, CLASSES),
    )


def adam(*modules: nn.Module, lr: float = 1e-3, decay: float = 0.01) -> torch.optim.AdamW:
    return torch.optim.AdamW([p for m in modules for p in m.parameters()], lr, weight_decay=decay)


def sgd(*modules: nn.Module, lr: float = 0.05, momentum: float = 0.9) -> torch.optim.SGD:
    return torch.optim.SGD([p for m in modules for p in m.parameters()], lr, momentum=momentum)


def epochs(session: Session, count: int, batch: int) -> Callable[[int], Tensor]:
    """Rows in shuffled epochs, the last batch of each a short one."""
    order: list[Tensor] = []

    def rows(_: int) -> Tensor:
        if not order:
            order.extend(torch.randperm(count, generator=session.generator).split(batch)[::-1])
        return order.pop()

    return rows


def xent(model: nn.Module, data: Tensor, labels: Tensor, **options: Any) -> Tensor:
    return functional.cross_entropy(model(data), labels, **options)


# Vision and classification.


def _vision(session: Session, optimizer: str, schedule: str, batch: int = 16) -> Setup:
    data, labels = images(session)
    model = cnn()
    made: torch.optim.Optimizer = adam(model) if optimizer == "adam" else sgd(model)
    rows = epochs(session, len(data), batch)
    plans: dict[str, Callable[[], Any]] = {
        "none": lambda: None,
        "cosine": lambda: lr_scheduler.CosineAnnealingLR(made, STEPS),
        "onecycle": lambda: lr_scheduler.OneCycleLR(made, 0.1, total_steps=STEPS + 1),
        "drops": lambda: lr_scheduler.MultiStepLR(made, [500, 1000], 0.1),
        "restarts": lambda: lr_scheduler.CosineAnnealingWarmRestarts(made, 400),
        "cyclic": lambda: lr_scheduler.CyclicLR(made, 1e-3, 0.1, step_size_up=200),
    }

    def loss(number: int) -> Any:
        chosen = rows(number)
        return xent(model, data[chosen], labels[chosen])

    return Setup(made, loss, schedule=plans[schedule]())


for _optimizer, _schedule in (
    ("sgd", "cosine"),
    ("sgd", "onecycle"),
    ("sgd", "drops"),
    ("sgd", "restarts"),
    ("sgd", "cyclic"),
    ("adam", "none"),
):
    kind(f"vision, {_optimizer}, {_schedule}")(
        lambda session, o=_optimizer, s=_schedule: _vision(session, o, s)  # type: ignore[misc]
    )


@kind("vision, mix-up in half of the batches")
def mixup(session: Session) -> Setup:
    data, labels = images(session)
    model = cnn()

    def loss(number: int) -> Any:
        rows, others = session.pick(len(data), 16), session.pick(len(data), 16)
        share = float(session.dice.beta(0.8, 0.8)) if session.dice.random() < 0.5 else 1.0
        scores = model(share * data[rows] + (1 - share) * data[others])
        return share * functional.cross_entropy(scores, labels[rows]) + (
            1 - share
        ) * functional.cross_entropy(scores, labels[others])

    return Setup(adam(model), loss)


@kind("vision, label smoothing and dropout")
def smoothing(session: Session) -> Setup:
    data, labels = points(session)
    model = nn.Sequential(nn.Dropout(0.5), mlp(FEATURES, CLASSES, width=128), nn.Dropout(0.3))

    def loss(number: int) -> Any:
        rows = session.pick(len(data), 32)
        return xent(model, data[rows], labels[rows], label_smoothing=0.1)

    return Setup(adam(model), loss, clip=1.0)


@kind("fine-tuning, 8 epochs of a small set")
def finetune(session: Session) -> Setup:
    """The loss falls at each epoch's start, and its last batch is short."""
    data, labels = points(session, 1600, noise=0.15)
    model = mlp(FEATURES, CLASSES, width=256)
    optimizer = adam(model, lr=5e-4)
    rows = epochs(session, len(data), 8)
    schedule = lr_scheduler.LinearLR(optimizer, 1.0, 0.01, STEPS)

    def loss(number: int) -> Any:
        chosen = rows(number)
        return xent(model, data[chosen], labels[chosen])

    return Setup(optimizer, loss, clip=1.0, schedule=schedule)


@kind("LoRA on a frozen model")
def lora(session: Session) -> Setup:
    data, labels = points(session)
    frozen = nn.Linear(FEATURES, 64)
    down, up = nn.Linear(FEATURES, 4, bias=False), nn.Linear(4, 64, bias=False)
    nn.init.zeros_(up.weight)
    head = nn.Linear(64, CLASSES)
    for parameter in (*frozen.parameters(), *head.parameters()):
        parameter.requires_grad_(False)

    def loss(number: int) -> Any:
        rows = session.pick(len(data), 8)
        hidden = frozen(data[rows]) + 2 * up(down(data[rows]))
        return functional.cross_entropy(head(hidden.relu()), labels[rows])

    return Setup(adam(down, up, lr=2e-3), loss, clip=1.0)


@kind("distillation, KL to a teacher")
def distillation(session: Session) -> Setup:
    data, _ = points(session)
    teacher, student = mlp(FEATURES, CLASSES, width=128), mlp(FEATURES, CLASSES, width=32)

    def loss(number: int) -> Any:
        rows = session.pick(len(data), 32)
        with torch.no_grad():
            wanted = (8 * teacher(data[rows])).log_softmax(1)
        found = student(data[rows]).log_softmax(1)
        return functional.kl_div(found, wanted, reduction="batchmean", log_target=True)

    return Setup(adam(student), loss)


@kind("imbalanced, focal loss")
def focal(session: Session) -> Setup:
    data = session.normal(8000, FEATURES)
    labels = (data[:, :4].sum(1) > 4.5).float()
    model = mlp(FEATURES, 1)

    def loss(number: int) -> Any:
        rows = session.pick(len(data), 32)
        scores = model(data[rows])[:, 0]
        each = functional.binary_cross_entropy_with_logits(scores, labels[rows], reduction="none")
        return ((1 - (-each).exp()) ** 2 * each).mean()

    return Setup(adam(model), loss)


@kind("imbalanced, positive weight 50")
def weighted(session: Session) -> Setup:
    data = session.normal(8000, FEATURES)
    labels = (data[:, :4].sum(1) + 0.5 * session.normal(8000) > 4.5).float()
    model = mlp(FEATURES, 1)
    weight = torch.tensor(50.0)

    def loss(number: int) -> Any:
        rows = session.pick(len(data), 16)
        scores = model(data[rows])[:, 0]
        return functional.binary_cross_entropy_with_logits(scores, labels[rows], pos_weight=weight)

    return Setup(adam(model), loss)


@kind("segmentation, Dice loss")
def dice(session: Session) -> Setup:
    """Bounded by 1; small objects make noisy batches."""
    shapes = (session.uniform(400, 1, 8, 8) < 0.15).float()
    data = shapes + 0.4 * session.normal(400, 1, 8, 8)
    model = nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 1, 3, padding=1), nn.Sigmoid()
    )

    def loss(number: int) -> Any:
        rows = session.pick(len(data), 8)
        found, wanted = model(data[rows]), shapes[rows]
        return 1 - 2 * (found * wanted).sum() / (found.sum() + wanted.sum() + 1)

    return Setup(adam(model), loss)


@kind("detection, three losses, objects vary")
def detection(session: Session) -> Setup:
    model = mlp(FEATURES, CLASSES + 5, width=96)
    truth = session.normal(FEATURES, 4)
    centres = session.normal(CLASSES, FEATURES)

    def loss(number: int) -> Any:
        count = 1 + int(session.dice.poisson(4))
        labels = session.pick(CLASSES, count)
        data = centres[labels] + 0.7 * session.normal(count, FEATURES)
        found = model(data)
        boxes = functional.smooth_l1_loss(found[:, :4], data @ truth / 6, reduction="sum")
        empty = model(session.normal(32, FEATURES))[:, 4]
        objects = functional.binary_cross_entropy_with_logits(
            torch.cat((found[:, 4], empty)), torch.cat((torch.ones(count), torch.zeros(32)))
        )
        return functional.cross_entropy(found[:, 5:], labels) + boxes / 4 + objects

    return Setup(sgd(model, lr=0.01), loss, clip=10.0)


@kind("adversarial training")
def adversarial(session: Session) -> Setup:
    data, labels = points(session)
    model = mlp(FEATURES, CLASSES)

    def loss(number: int) -> Any:
        rows = session.pick(len(data), 32)
        inputs = data[rows].clone().requires_grad_()
        (slope,) = torch.autograd.grad(xent(model, inputs, labels[rows]), inputs)
        return xent(model, (inputs + 0.2 * slope.sign()).detach(), labels[rows])

    return Setup(adam(model), loss)


@kind("domain-adversarial, reversed gradient")
def domains(session: Session) -> Setup:
    data, labels = points(session)
    body, head, judge = mlp(FEATURES, 16), nn.Linear(16, CLASSES), mlp(16, 2, width=16)

    def loss(number: int) -> Any:
        rows = session.pick(len(data), 32)
        domain = session.pick(2, 32)
        hidden = body(data[rows] + 0.5 * domain[:, None].float())
        reversed_ = hidden.detach() * 2 - hidden
        return functional.cross_entropy(head(hidden), labels[rows]) + functional.cross_entropy(
            judge(reversed_), domain
        )

    return Setup(adam(body, head, judge), loss)


@kind("tasks one after another")
def continual(session: Session) -> Setup:
    """Every 600 steps the labels mean something else: the loss jumps and falls again."""
    data, labels = points(session)
    model = mlp(FEATURES, CLASSES)

    def loss(number: int) -> Any:
        rows = session.pick(len(data), 32)
        return xent(model, data[rows], (labels[rows] + number // 500) % CLASSES)

    return Setup(adam(model), loss)


# Generative and self-supervised.


@kind("diffusion, noise prediction, batch 64")
def ddpm(session: Session) -> Setup:
    model = mlp(3, 2, width=96, hidden=3)

    def loss(number: int) -> Any:
        angle = 6.28 * session.uniform(64)
        clean = torch.stack((angle.cos(), angle.sin()), 1) + 0.05 * session.normal(64, 2)
        time = session.uniform(64, 1)
        noise = session.normal(64, 2)
        mixed = (1 - time).sqrt() * clean + time.sqrt() * noise
        return functional.mse_loss(model(torch.cat((mixed, time), 1)), noise)

    return Setup(adam(model), loss, clip=1.0)


@kind("flow matching, batch 16")
def flow_matching(session: Session) -> Setup:
    model = mlp(3, 2, width=96, hidden=3)

    def loss(number: int) -> Any:
        clean = 2 * session.pick(2, 16)[:, None].float() - 1 + 0.1 * session.normal(16, 2)
        time, noise = session.uniform(16, 1), session.normal(16, 2)
        found = model(torch.cat((time * clean + (1 - time) * noise, time), 1))
        return functional.mse_loss(found, clean - noise)

    return Setup(adam(model), loss)


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


@kind("VQ auto-encoder")
def vq(session: Session) -> Setup:
    data, _ = points(session)
    encoder, decoder, codes = mlp(FEATURES, 8), mlp(8, FEATURES), nn.Embedding(32, 8)

    def loss(number: int) -> Any:
        batch = data[session.pick(len(data), 32)]
        hidden = encoder(batch)
        near = codes(torch.cdist(hidden, codes.weight).argmin(1))
        error = functional.mse_loss(decoder(hidden + (near - hidden).detach()), batch)
        return (
            error
            + functional.mse_loss(near, hidden.detach())
            + 0.25 * functional.mse_loss(hidden, near.detach())
        )

    return Setup(adam(encoder, decoder, codes), loss)


@kind("auto-encoder, warm restarts")
def autoencoder(session: Session) -> Setup:
    data, _ = points(session)
    model = nn.Sequential(mlp(FEATURES, 6), mlp(6, FEATURES))
    optimizer = adam(model, lr=3e-3)

    def loss(number: int) -> Any:
        batch = data[session.pick(len(data), 32)]
        return functional.mse_loss(model(batch), batch)

    return Setup(
        optimizer, loss, schedule=lr_scheduler.CosineAnnealingWarmRestarts(optimizer, 300, 2)
    )


@kind("masked auto-encoder")
def masked(session: Session) -> Setup:
    mix = session.normal(6, FEATURES)
    model = mlp(2 * FEATURES, FEATURES, width=96)

    def loss(number: int) -> Any:
        batch = session.normal(16, 6) @ mix
        hidden = (session.uniform(16, FEATURES) < 0.75).float()
        found = model(torch.cat((batch * (1 - hidden), hidden), 1))
        return ((found - batch).square() * hidden).sum() / hidden.sum()

    return Setup(adam(model), loss, clip=1.0)


@kind("sparse auto-encoder, L1")
def sparse_code(session: Session) -> Setup:
    mix = session.normal(64, FEATURES)
    encoder, decoder = nn.Linear(FEATURES, 128), nn.Linear(128, FEATURES)

    def loss(number: int) -> Any:
        batch = (session.normal(64, 64) * (session.uniform(64, 64) < 0.05)) @ mix
        hidden = encoder(batch).relu()
        return functional.mse_loss(decoder(hidden), batch) + 0.01 * hidden.abs().sum(1).mean()

    return Setup(adam(encoder, decoder, lr=3e-3), loss)


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


@kind("BYOL, target by moving average")
def byol(session: Session) -> Setup:
    data, _ = points(session)
    online, target, guess = mlp(FEATURES, 16), mlp(FEATURES, 16), mlp(16, 16)
    target.load_state_dict(online.state_dict())

    def loss(number: int) -> Any:
        batch = data[session.pick(len(data), 32)]
        with torch.no_grad():
            wanted = target(batch + 0.3 * session.normal(32, FEATURES))
        found = guess(online(batch + 0.3 * session.normal(32, FEATURES)))
        return 2 - 2 * functional.cosine_similarity(found, wanted).mean()

    @torch.no_grad()
    def follow(number: int) -> None:
        for ours, theirs in zip(target.parameters(), online.parameters(), strict=True):
            ours.lerp_(theirs, 0.01)

    return Setup(adam(online, guess), loss, after=follow)


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
        found: Tensor = functional.softplus(-good).mean() + functional.softplus(bad).mean()
        if kind_ == "lazy penalty" and number % 16 == 0:
            (slope,) = torch.autograd.grad(good.sum(), data, create_graph=True)
            found = found + 80 * slope.square().sum(1).mean()
        return found

    def after(number: int) -> None:
        judged = critic(maker(session.normal(64, 8)))
        back = (judged - 1).square() if kind_ == "least squares" else functional.softplus(-judged)
        of_maker.zero_grad()
        back.mean().backward()
        of_maker.step()

    return Setup(of_critic, loss, after=after)


kind("GAN, least squares, critic")(lambda session: _gan(session, "least squares"))
kind("GAN, penalty every 16 steps")(lambda session: _gan(session, "lazy penalty"))
kind("GAN, no penalty, critic")(lambda session: _gan(session, "plain"))


# Sequences, graphs, tables.


@kind("speech, CTC, lengths vary")
def ctc(session: Session) -> Setup:
    model = nn.GRU(8, 32, batch_first=True)
    head = nn.Linear(32, 6)
    sounds = session.normal(6, 8)

    def loss(number: int) -> Any:
        lengths = [int(session.dice.integers(2, 7)) for _ in range(8)]
        words = [1 + session.pick(5, length) for length in lengths]
        frames = torch.zeros(8, 24, 8)
        for row, word in enumerate(words):
            spoken = sounds[word.repeat_interleave(24 // len(word))]
            frames[row, : len(spoken)] = spoken + 0.5 * session.normal(*spoken.shape)
        scores = head(model(frames)[0]).log_softmax(2).transpose(0, 1)
        return functional.ctc_loss(
            scores, torch.cat(words), torch.full((8,), 24), torch.tensor(lengths)
        )

    return Setup(adam(model, head, lr=2e-3), loss, clip=5.0)


@kind("language model, curriculum of lengths")
def curriculum(session: Session) -> Setup:
    text, model = markov(1, 2.0), LanguageModel()

    def loss(number: int) -> Any:
        return loss_on(model, windows(text, session.generator, 8, 4 + number // 150))

    return Setup(adam(model, lr=3e-3), loss, clip=1.0)


@kind("language model, one epoch after another")
def lm_epochs(session: Session) -> Setup:
    text, model = markov(2, 1.5, 6000), LanguageModel()
    rows = epochs(session, len(text) // 17, 8)
    pieces = text[: len(text) // 17 * 17].view(-1, 17)
    return Setup(adam(model, lr=4e-3), lambda number: loss_on(model, pieces[rows(number)]), 1.0)


@kind("language model, accumulation of 4")
def accumulated(session: Session) -> Setup:
    text, model = markov(3, 2.0), LanguageModel()
    return Setup(
        adam(model, lr=3e-3),
        lambda number: loss_on(model, windows(text, session.generator, 4, 12)),
        clip=1.0,
        accumulate=4,
    )


@kind("language model, WSD schedule")
def wsd(session: Session) -> Setup:
    text, model = markov(4, 2.0), LanguageModel()
    optimizer = adam(model, lr=4e-3)
    schedule = lr_scheduler.LambdaLR(
        optimizer, lambda step: min(1.0, (step + 1) / 100, max(0.0, (STEPS - step) / 500))
    )
    return Setup(
        optimizer,
        lambda number: loss_on(model, windows(text, session.generator, 16, 12)),
        clip=1.0,
        schedule=schedule,
    )


@kind("language model, two sources of data")
def sources(session: Session) -> Setup:
    easy, hard, model = markov(5, 3.0), markov(6, 0.8), LanguageModel()

    def loss(number: int) -> Any:
        text = hard if session.dice.random() < 0.12 else easy
        return loss_on(model, windows(text, session.generator, 8, 12))

    return Setup(adam(model, lr=3e-3), loss, clip=1.0)


@kind("mixture of experts with a balancing loss")
def experts(session: Session) -> Setup:
    data, labels = points(session)
    router = nn.Linear(FEATURES, 4)
    parts = nn.ModuleList([mlp(FEATURES, CLASSES, width=24) for _ in range(4)])

    def loss(number: int) -> Any:
        rows = session.pick(len(data), 32)
        shares = router(data[rows]).softmax(1)
        best, chosen = shares.max(1)
        every = torch.stack([part(data[rows]) for part in parts], 1)
        scores = best[:, None] * every[torch.arange(32), chosen]
        load = functional.one_hot(chosen, 4).float().mean(0)
        return functional.cross_entropy(scores, labels[rows]) + 0.04 * (load @ shares.mean(0))

    return Setup(adam(router, parts), loss, clip=1.0)


@kind("graph, sparse batches")
def graph(session: Session) -> Setup:
    """Neighbourhoods of 1 to 60 nodes; labels known for few of them."""
    first, second = nn.Linear(FEATURES, 48), nn.Linear(48, 4)
    truth = session.normal(FEATURES, 4)

    def loss(number: int) -> Any:
        count = 1 + int(session.dice.geometric(0.08))
        nodes = session.normal(count, FEATURES)
        links = (session.uniform(count, count) < 3 / count).float() + torch.eye(count)
        links = links / links.sum(1, keepdim=True)
        labels = (links @ nodes @ truth).argmax(1)
        return functional.cross_entropy(second(links @ first(nodes).relu()), labels)

    return Setup(adam(first, second), loss)


@kind("recommender, embeddings, clicks")
def recommender(session: Session) -> Setup:
    users, items = nn.Embedding(500, 8), nn.Embedding(300, 8)
    for table in (users, items):
        nn.init.normal_(table.weight, std=0.1)
    truth = session.normal(500, 3) @ session.normal(3, 300)

    def loss(number: int) -> Any:
        user = session.pick(500, 64)
        item = (300 * session.uniform(64) ** 3).long()
        clicks = (truth[user, item] > 2.0).float()
        scores = (users(user) * items(item)).sum(1)
        return functional.binary_cross_entropy_with_logits(scores, clicks)

    return Setup(torch.optim.Adagrad([users.weight, items.weight], 0.1), loss)


@kind("click rate, wide table, batch 256")
def click_rate(session: Session) -> Setup:
    table = nn.EmbeddingBag(2000, 8, mode="sum")
    top = mlp(8, 1, width=32)
    truth = 0.7 * session.normal(2000)

    def loss(number: int) -> Any:
        rows = (2000 * session.uniform(256, 10) ** 2).long()
        clicks = (session.uniform(256) < (truth[rows].sum(1) - 3).sigmoid()).float()
        return functional.binary_cross_entropy_with_logits(top(table(rows))[:, 0], clicks)

    return Setup(adam(table, top), loss)


@kind("time series, LSTM, mean square")
def series(session: Session) -> Setup:
    model, head = nn.LSTM(1, 24, batch_first=True), nn.Linear(24, 1)

    def loss(number: int) -> Any:
        phase, pace = 6.28 * session.uniform(8, 1), 0.2 + 0.3 * session.uniform(8, 1)
        time = torch.arange(25.0)
        wave = (phase + pace * time).sin() * (1 + (session.uniform(8, 1) < 0.05) * 4)
        wave = (wave + 0.05 * session.normal(8, 25))[:, :, None]
        return functional.mse_loss(head(model(wave[:, :-1])[0]), wave[:, 1:])

    return Setup(adam(model, head, lr=3e-3), loss, clip=1.0)


@kind("quantile regression, skewed targets")
def quantile(session: Session) -> Setup:
    model = mlp(8, 1)

    def loss(number: int) -> Any:
        data = session.normal(32, 8)
        wanted = data[:, 0] + (1.2 * session.normal(32)).exp()
        off = wanted - model(data)[:, 0]
        return torch.maximum(0.9 * off, -0.1 * off).mean()

    return Setup(adam(model), loss)


@kind("regression that converges to 1e-6")
def exact(session: Session) -> Setup:
    truth, model = session.normal(16, 4), nn.Linear(16, 4)
    optimizer = adam(model, lr=1e-2, decay=0.0)

    def loss(number: int) -> Any:
        data = session.normal(32, 16)
        return functional.mse_loss(model(data), data @ truth)

    return Setup(optimizer, loss, schedule=lr_scheduler.CosineAnnealingLR(optimizer, STEPS))


@kind("equation learnt from its residual")
def equation(session: Session) -> Setup:
    """u'' = -u with two ends fixed; the terms compete."""
    net = nn.Sequential(nn.Linear(1, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 1))

    def loss(number: int) -> Any:
        place = (6.28 * session.uniform(32, 1)).requires_grad_()
        value = net(place)
        (slope,) = torch.autograd.grad(value.sum(), place, create_graph=True)
        (curve,) = torch.autograd.grad(slope.sum(), place, create_graph=True)
        ends = net(torch.tensor([[0.0], [1.5708]])) - torch.tensor([[0.0], [1.0]])
        return (curve + value).square().mean() + 20 * ends.square().mean()

    return Setup(adam(net), loss)


@kind("online, batch 1, plain SGD")
def online(session: Session) -> Setup:
    data, labels = points(session)
    model = nn.Linear(FEATURES, CLASSES)

    def loss(number: int) -> Any:
        row = session.pick(len(data), 1)
        return xent(model, data[row], labels[row])

    return Setup(sgd(model, lr=0.01, momentum=0.0), loss)


@kind("weights averaged, constant rate")
def averaged(session: Session) -> Setup:
    data, labels = points(session, noise=0.1)
    model = mlp(FEATURES, CLASSES)
    mean = torch.optim.swa_utils.AveragedModel(model)
    rows = epochs(session, len(data), 64)

    def loss(number: int) -> Any:
        chosen = rows(number)
        return xent(model, data[chosen], labels[chosen])

    def after(number: int) -> None:
        if number % 100 == 99:
            mean.update_parameters(model)

    return Setup(sgd(model, lr=0.1), loss, after=after)


@kind("meta-learning, a task a step")
def meta(session: Session) -> Setup:
    """First-order: the loss after three inner steps on a new task."""
    model = mlp(1, 1, width=40)

    def loss(number: int) -> Any:
        high, phase = 0.5 + 4 * float(session.uniform(1)), 3.14 * float(session.uniform(1))
        data = 10 * session.uniform(20, 1) - 5
        wanted = high * (data + phase).sin()
        weights: dict[str, Tensor] = dict(model.named_parameters())
        for _ in range(3):
            off = torch.func.functional_call(model, weights, (data[:10],)) - wanted[:10]
            slopes = torch.autograd.grad(off.square().mean(), list(weights.values()))
            weights = {
                name: weight - 0.01 * slope.detach()
                for (name, weight), slope in zip(weights.items(), slopes, strict=True)
            }
        off = torch.func.functional_call(model, weights, (data[10:],)) - wanted[10:]
        return off.square().mean()

    return Setup(adam(model), loss, clip=10.0)


@kind("two tasks in turn, unlike scales")
def in_turn(session: Session) -> Setup:
    data, labels = points(session)
    body, one, two = mlp(FEATURES, 32), nn.Linear(32, CLASSES), nn.Linear(32, 1)

    def loss(number: int) -> Any:
        rows = session.pick(len(data), 32)
        hidden = body(data[rows]).relu()
        if number % 2:
            return functional.cross_entropy(one(hidden), labels[rows])
        return 0.1 * functional.mse_loss(two(hidden)[:, 0], data[rows, 0])

    return Setup(adam(body, one, two), loss)


# Preferences and reinforcement.


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


@kind("reward model, noisy pairs")
def rewards(session: Session) -> Setup:
    model, taste = mlp(FEATURES, 1), session.normal(FEATURES)

    def loss(number: int) -> Any:
        one, two = session.normal(16, FEATURES), session.normal(16, FEATURES)
        sign = ((one - two) @ taste + 2 * session.normal(16)).sign()
        return -functional.logsigmoid(sign * (model(one) - model(two))[:, 0]).mean()

    return Setup(adam(model), loss, clip=1.0)


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


@kind("actor-critic, one loss")
def actor_critic(session: Session) -> Setup:
    body, policy, critic = mlp(6, 32), nn.Linear(32, 4), nn.Linear(32, 1)
    truth = session.normal(6, 4)

    def loss(number: int) -> Any:
        state = session.normal(16, 6)
        hidden = body(state).relu()
        choice = Categorical(logits=policy(hidden))
        action = torch.multinomial(choice.probs.detach(), 1, generator=session.generator)[:, 0]
        reward = (state @ truth).gather(1, action[:, None])[:, 0] + session.normal(16)
        value = critic(hidden)[:, 0]
        gain = (reward - value).detach()
        return (
            -(choice.log_prob(action) * gain).mean()
            + 0.5 * (reward - value).square().mean()
            - 0.01 * choice.entropy().mean()
        )

    return Setup(adam(body, policy, critic), loss, clip=0.5)


@kind("soft actor, continuous actions")
def soft_actor(session: Session) -> Setup:
    policy = mlp(6, 4)
    truth = session.normal(6, 2)

    def loss(number: int) -> Any:
        state = session.normal(32, 6)
        middle, log_spread = policy(state).chunk(2, 1)
        choice = Normal(middle, log_spread.clamp(-4, 1).exp())
        action = choice.mean + choice.stddev * session.normal(32, 2)
        worth = -(action - state @ truth).square().sum(1)
        return (0.2 * choice.log_prob(action).sum(1) - worth).mean()

    return Setup(adam(policy), loss)


@kind("temporal differences, moving target")
def td(session: Session) -> Setup:
    value, target = mlp(4, 1), mlp(4, 1)
    target.load_state_dict(value.state_dict())
    turn = torch.linalg.qr(session.normal(4, 4)).Q

    def loss(number: int) -> Any:
        state = session.normal(32, 4)
        following = state @ turn + 0.2 * session.normal(32, 4)
        with torch.no_grad():
            wanted = state[:, 0] + 0.9 * target(following)[:, 0]
        return functional.smooth_l1_loss(value(state)[:, 0], wanted)

    @torch.no_grad()
    def follow(number: int) -> None:
        if number % 200 == 199:
            target.load_state_dict(value.state_dict())

    return Setup(adam(value), loss, after=follow)


@kind("REINFORCE, sparse reward")
def sparse_reward(session: Session) -> Setup:
    policy = mlp(8, 6)
    truth = session.normal(8, 6)

    def loss(number: int) -> Any:
        state = session.normal(16, 8)
        scores = policy(state).log_softmax(1)
        tries = torch.multinomial(scores.detach().exp(), 1, generator=session.generator)
        won = ((state @ truth).argmax(1, keepdim=True) == tries).float()
        paid = won * (session.uniform(16, 1) < 0.1) * 10
        return -(scores.gather(1, tries) * (paid - paid.mean())).mean()

    return Setup(adam(policy), loss)
