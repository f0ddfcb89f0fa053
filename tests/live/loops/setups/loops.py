"""Set-ups that differ by their loop, their model or their precision."""

import copy
import importlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from tests.kit.tiny import VOCABULARY, batches, loss_of, make_model
from tests.kit.user_loop import take_step
from tests.live.loops.setups.models import (
    Recurrent,
    Routed,
    built_convolutional,
    checkpointed,
    in_dtype,
    low_rank,
    mean_square,
    noise,
    seeded,
    spectral,
    tied,
    trainable,
)
from tests.live.loops.setups.optimizers import of
from tests.live.loops.setups.trial import STEPS, Factor, Learned, Loop, SetUp, learned, state_of
from torch import nn
from torch.nn import functional as F
from torch.optim.swa_utils import AveragedModel

ADAMW = of(torch.optim.AdamW, lr=1e-2)


def dropped_layers(model: Any, batch: torch.Tensor) -> torch.Tensor:
    """LayerDrop: which blocks run depends on the batch."""
    x = model.embed(batch[:, :-1])
    for number, block in enumerate(model.blocks):
        if (int(batch.sum()) + number) % 3:
            x = block(x)
    return F.cross_entropy(model.head(x).flatten(0, 1), batch[:, 1:].flatten())


def two_losses(model: Any, batch: torch.Tensor) -> torch.Tensor:
    return loss_of(model, batch) + 0.1 * loss_of(model, batch.flip(0))


def penalised(model: Any, batch: torch.Tensor) -> torch.Tensor:
    """A gradient penalty: backward of a backward."""
    loss = loss_of(model, batch)
    (gradient,) = torch.autograd.grad(loss, [model.head.weight], create_graph=True)
    return loss + gradient.square().sum()


class Average:
    """An exponential moving average that is updated after each step."""

    def __init__(self, by: str) -> None:
        self.by = by
        self.average: Any = None

    def __call__(self, model: Any) -> None:
        if self.average is None:
            self.average = AveragedModel(model) if self.by == "torch" else copy.deepcopy(model)
        elif self.by == "torch":
            self.average.update_parameters(model)
        else:
            for mine, theirs in zip(self.average.parameters(), model.parameters(), strict=True):
                mine.data.lerp_(theirs.data, 0.1)


def averaged(by: str) -> Callable[..., Learned]:
    def train(watch: Any, factor: Factor) -> Learned:
        return Loop(optimizer=ADAMW, after_step=Average(by))(watch, factor)

    return train


def alternating(watch: Any, factor: Factor, critics: int = 1) -> Learned:
    """A GAN: two optimizers take turns."""
    torch.manual_seed(0)
    pair = nn.ModuleDict({"g": nn.Linear(8, 2), "d": nn.Linear(2, 1)})
    of_d = torch.optim.Adam(pair["d"].parameters())
    of_g = torch.optim.Adam(pair["g"].parameters())
    with watch(pair, [of_d, of_g]) as guard:
        for step in range(STEPS):
            by = factor(step)
            if by is None:
                continue
            torch.manual_seed(1000 + step)
            for _ in range(critics):
                fake = pair["g"](torch.randn(16, 8)).detach()
                real = pair["d"](torch.randn(16, 2))
                loss = (F.softplus(-real) + F.softplus(pair["d"](fake))).mean() * by
                of_d.zero_grad()
                take_step(guard, of_d, loss)
            take_step(
                guard, of_g, F.softplus(-pair["d"](pair["g"](torch.randn(16, 8)))).mean() * by
            )
    return state_of(pair)


def several_critics(watch: Any, factor: Factor) -> Learned:
    return alternating(watch, factor, critics=3)


def scheduled(watch: Any, factor: Factor) -> Learned:
    model = make_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-2, total_steps=STEPS + 1)
    with watch(model, optimizer) as guard:
        for step, batch in enumerate(batches(STEPS)):
            by = factor(step)
            if by is not None:
                torch.manual_seed(1000 + step)
                take_step(guard, optimizer, loss_of(model, batch) * by, tokens=batch.numel())
            schedule.step()
    return learned(model.parameters())


def adapters(watch: Any, factor: Factor) -> Learned:
    """LoRA of peft on a bf16 GPT-2 of transformers, with gradient checkpointing."""
    peft, transformers = (importlib.import_module(name) for name in ("peft", "transformers"))

    def make() -> Any:
        torch.manual_seed(0)
        config = transformers.GPT2Config(
            vocab_size=VOCABULARY, n_positions=16, n_embd=16, n_layer=2, n_head=2, use_cache=False
        )
        base = transformers.GPT2LMHeadModel(config).to(torch.bfloat16)
        model = peft.get_peft_model(base, peft.LoraConfig(r=4, target_modules=["c_attn"]))
        model.enable_input_require_grads()
        model.gradient_checkpointing_enable()
        return model

    def loss(model: Any, batch: torch.Tensor) -> torch.Tensor:
        value: torch.Tensor = model(input_ids=batch, labels=batch).loss
        return value

    return Loop(optimizer=trainable, model=make, loss=loss, clip="guard")(watch, factor)


def accelerated(watch: Any, factor: Factor) -> Learned:
    """Accelerate, with its accumulation."""
    accelerator = importlib.import_module("accelerate").Accelerator(
        cpu=True, gradient_accumulation_steps=2
    )
    raw = make_model()
    model, optimizer = accelerator.prepare(raw, torch.optim.AdamW(raw.parameters(), lr=1e-2))
    with watch(model, optimizer) as guard:
        for position, batch in enumerate(batches(2 * STEPS)):
            by = factor(position // 2)
            if by is None:
                continue
            torch.manual_seed(1000 + position)
            with accelerator.accumulate(model):
                loss = loss_of(model, batch) * by
                guard.record(loss=loss, tokens=batch.numel())
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    guard.clip_grad_norm_(0.5)
                optimizer.step()
                optimizer.zero_grad()
    return learned(raw.parameters())


def compiled(model: Any) -> Any:
    torch._dynamo.reset()
    return torch.compile(model, backend="aot_eager")


def compiled_blocks(model: Any) -> Any:
    torch._dynamo.reset()
    for block in model.blocks:
        block.compile(backend="aot_eager")
    return model


_BF16, _FP16 = torch.bfloat16, torch.float16
_HALF_ADAMW = of(torch.optim.AdamW, lr=1e-3, eps=1e-4)
LOOPS: dict[str, dict[str, Callable[..., Learned]]] = {
    "precision": {
        "bf16 autocast": Loop(optimizer=ADAMW, autocast=_BF16),
        "fp16 autocast, GradScaler given to watch": Loop(
            optimizer=ADAMW, autocast=_FP16, scaler="given", clip="guard"
        ),
        "fp16 autocast, GradScaler not given": Loop(
            optimizer=ADAMW, autocast=_FP16, scaler="hidden", clip="torch"
        ),
        "bf16 parameters": Loop(optimizer=_HALF_ADAMW, model=in_dtype(_BF16)),
        "fp16 parameters": Loop(optimizer=_HALF_ADAMW, model=in_dtype(_FP16)),
        "fp64 parameters": Loop(optimizer=ADAMW, model=in_dtype(torch.float64)),
    },
    "loop": {
        "clipped by the guard": Loop(optimizer=ADAMW, clip="guard"),
        "clipped by torch": Loop(optimizer=ADAMW, clip="torch"),
        "clipped by value": Loop(optimizer=ADAMW, clip="value"),
        "accumulation over 4 micro-batches": Loop(optimizer=ADAMW, accumulate=4, clip="guard"),
        "guard.steps": Loop(optimizer=ADAMW, accumulate=2, step_loop=True),
        "record after backward": Loop(optimizer=ADAMW, record_last=True, clip="guard"),
        "zero_grad(set_to_none=False)": Loop(optimizer=ADAMW, zero_in_place=True, clip="guard"),
        "step with a closure": Loop(optimizer=ADAMW, closure=True),
        "OneCycleLR": scheduled,
        "EMA by AveragedModel": averaged("torch"),
        "EMA by deepcopy": averaged("copy"),
        "GAN": alternating,
        "GAN, three critic steps": several_critics,
        "two losses": Loop(optimizer=ADAMW, loss=two_losses),
        "gradient penalty (create_graph)": Loop(optimizer=ADAMW, loss=penalised),
    },
    "model": {
        "gradient checkpointing": Loop(optimizer=ADAMW, model=checkpointed),
        "torch.compile, whole model": Loop(optimizer=ADAMW, wrap=compiled),
        "torch.compile, by block": Loop(optimizer=ADAMW, wrap=compiled_blocks),
        "tied embedding and head": Loop(optimizer=ADAMW, model=tied),
        "LoRA by hand": Loop(optimizer=trainable, model=low_rank),
        "mixture of experts": Loop(optimizer=ADAMW, model=seeded(Routed)),
        "LSTM": Loop(optimizer=ADAMW, model=seeded(Recurrent)),
        "convolutions with BatchNorm": Loop(
            optimizer=ADAMW, model=built_convolutional, loss=mean_square, data=noise
        ),
        "spectral norm": Loop(optimizer=ADAMW, model=spectral),
        "LayerDrop": Loop(optimizer=ADAMW, loss=dropped_layers),
    },
}


def loop_setups() -> Iterator[SetUp]:
    """One set-up for each loop."""
    for group, loops in LOOPS.items():
        for name, train in loops.items():
            yield SetUp(name=name, group=group, train=train)
    yield SetUp(name="peft LoRA, bf16 GPT-2", group="model", train=adapters, package="peft")
    yield SetUp(
        name="Accelerate, accumulate(2)", group="loop", train=accelerated, package="accelerate"
    )
