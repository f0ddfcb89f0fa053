"""Set-ups that differ by their optimizer: torch's, and those of other packages."""

import importlib
import inspect
import sys
import types
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from tests.kit.tiny import make_model, muon_and_adamw
from tests.live.loops.foreign_optimizers import CountsByInteger, CountsInTheGroup
from tests.live.loops.setups.trial import STEPS, Loop, SetUp
from torch import nn


def of(kind: Callable[..., Any], **options: Any) -> Callable[[Any], Any]:
    return lambda model: kind(model.parameters(), **options)


def sparse_model() -> Any:
    model = make_model()
    model.embed.sparse = True
    return model


def sparse_and_dense(model: Any) -> list[Any]:
    dense = [parameter for name, parameter in model.named_parameters() if "embed" not in name]
    return [torch.optim.SparseAdam(model.embed.parameters()), torch.optim.Adam(dense)]


def per_group(model: Any) -> Any:
    flat = [parameter for parameter in model.parameters() if parameter.dim() == 1]
    rest = [parameter for parameter in model.parameters() if parameter.dim() > 1]
    groups = [{"params": flat, "weight_decay": 0.0}, {"params": rest, "lr": 3e-3}]
    return torch.optim.AdamW(groups, lr=1e-2)


_optim = torch.optim
TORCH: dict[str, Callable[[Any], Any]] = {
    "SGD": of(_optim.SGD, lr=1e-1),
    "SGD, Nesterov": of(_optim.SGD, lr=1e-1, momentum=0.9, nesterov=True),
    "SGD, fused": of(_optim.SGD, lr=1e-1, momentum=0.9, fused=True),
    "Adam": of(_optim.Adam, lr=1e-2),
    "AdamW": of(_optim.AdamW, lr=1e-2),
    "AdamW, for-loop": of(_optim.AdamW, lr=1e-2, foreach=False),
    "AdamW, fused": of(_optim.AdamW, lr=1e-2, fused=True),
    "AdamW, AMSGrad": of(_optim.AdamW, lr=1e-2, amsgrad=True),
    "AdamW, learning rate in a tensor": lambda model: _optim.AdamW(
        model.parameters(), lr=torch.tensor(1e-2), fused=True
    ),
    "AdamW, groups": per_group,
    "Adagrad": of(_optim.Adagrad, lr=1e-2),
    "Adadelta": of(_optim.Adadelta, lr=1.0),
    "Adamax": of(_optim.Adamax, lr=1e-2),
    "ASGD": of(_optim.ASGD, lr=1e-2),
    "NAdam": of(_optim.NAdam, lr=1e-2),
    "RAdam": of(_optim.RAdam, lr=1e-2),
    "RMSprop": of(_optim.RMSprop, lr=1e-3),
    "Rprop": of(_optim.Rprop, lr=1e-2),
    "Adafactor": of(_optim.Adafactor, lr=1e-2),
    "Muon with AdamW": muon_and_adamw,
    "DeepSpeed-like (integer step)": lambda model: CountsByInteger(model.parameters()),
    "apex-like (step in the group)": lambda model: CountsInTheGroup(model.parameters()),
}

OTHERS: list[tuple[str, str, dict[str, Any]]] = [
    ("lion_pytorch", "Lion", {"lr": 1e-3}),
    ("prodigyopt", "Prodigy", {}),
    ("schedulefree", "AdamWScheduleFree", {"lr": 1e-2}),
    ("schedulefree", "SGDScheduleFree", {"lr": 1e-2}),
    ("schedulefree", "RAdamScheduleFree", {"lr": 1e-2}),
    ("transformers.optimization", "Adafactor", {}),
    ("torchao.optim", "AdamW8bit", {"lr": 1e-3}),
    ("torchao.optim", "AdamW4bit", {"lr": 1e-3}),
    ("torchao.optim", "AdamWFp8", {"lr": 1e-3}),
    ("bitsandbytes.optim", "AdamW8bit", {"lr": 1e-3}),
    ("bitsandbytes.optim", "Lion8bit", {"lr": 1e-3}),
    ("timm.optim.lamb", "Lamb", {"lr": 1e-2}),
    ("timm.optim.adan", "Adan", {"lr": 1e-2}),
    ("timm.optim.adamp", "AdamP", {"lr": 1e-2}),
    ("timm.optim.mars", "Mars", {"lr": 1e-2}),
    ("timm.optim.nvnovograd", "NvNovoGrad", {"lr": 1e-2}),
    ("timm.optim.adafactor_bv", "AdafactorBigVision", {"lr": 1e-2}),
    ("timm.optim.kron", "Kron", {"lr": 1e-3}),
    ("timm.optim.madgrad", "MADGRAD", {"lr": 1e-2}),
]

SWEPT = "pytorch_optimizer"


WIDE = 128
"""A matrix of this width has enough values for optimizers that quantize their state."""


def wide_model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(WIDE, WIDE), nn.ReLU(), nn.Linear(WIDE, WIDE))


def wide_batches(count: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(4, WIDE, generator=generator) for _ in range(count)]


def wide_loss(model: Any, batch: torch.Tensor) -> torch.Tensor:
    loss: torch.Tensor = model(batch).square().mean()
    return loss


def load(name: str) -> Any:
    """Import a module; of timm only its optimizers, because its models need torchvision."""
    if name.startswith("timm.optim."):
        for package in ("timm", "timm.optim"):
            if package not in sys.modules:
                sys.modules[package] = empty = types.ModuleType(package)
                folder = package.replace(".", "/")
                empty.__path__ = [f"{entry}/{folder}" for entry in sys.path]
    return importlib.import_module(name)


def _from_package(package: str, name: str, options: dict[str, Any]) -> Callable[[Any], Any]:
    def make(model: Any) -> Any:
        optimizer = getattr(load(package), name)(model.parameters(), **options)
        if hasattr(optimizer, "train"):
            optimizer.train()  # schedule-free optimizers have two modes
        return optimizer

    return make


def _swept(name: str) -> Callable[[Any], Any]:
    """An optimizer of pytorch_optimizer, with what its constructor insists on."""

    def make(model: Any) -> Any:
        kind: Any = importlib.import_module(SWEPT).load_optimizer(name)
        signature = inspect.signature(kind.__init__).parameters
        options: dict[str, Any] = {"lr": 1e-3} if "lr" in signature else {}
        if "num_iterations" in signature:
            options["num_iterations"] = STEPS
        parameters = list(model.parameters())
        if "use_muon" in inspect.getsource(kind):
            matrices = [p for p in parameters if p.dim() == 2]
            rest = [p for p in parameters if p.dim() != 2]
            parameters = [
                {"params": matrices, "use_muon": True},
                {"params": rest, "use_muon": False},
            ]
        return kind(parameters, **options)

    return make


def swept() -> list[SetUp]:
    """Every optimizer of pytorch_optimizer; none if it is not installed."""
    try:
        with warnings.catch_warnings(action="ignore"):
            names = importlib.import_module(SWEPT).get_supported_optimizers()
    except ImportError:
        return []
    return [
        SetUp(
            name=f"{SWEPT}: {name}",
            group="sweep",
            train=Loop(optimizer=_swept(name)),
            package=SWEPT,
        )
        for name in sorted(names)
    ]


def optimizer_setups() -> Iterator[SetUp]:
    """One set-up for each optimizer."""
    for name, make in TORCH.items():
        yield SetUp(name=name, group="optimizer", train=Loop(optimizer=make))
    yield SetUp(
        name="SparseAdam with Adam",
        group="optimizer",
        train=Loop(optimizer=sparse_and_dense, model=sparse_model),
    )
    yield SetUp(
        name="LBFGS",
        group="optimizer",
        train=Loop(optimizer=of(_optim.LBFGS, lr=1e-2), closure=True),
    )
    for package, name, options in OTHERS:
        title = f"{package.partition('.')[0]}: {name}"
        make = _from_package(package, name, options)
        train = Loop(optimizer=make)
        if name.endswith(("bit", "Fp8")):
            train = Loop(optimizer=make, model=wide_model, loss=wide_loss, data=wide_batches)
        yield SetUp(name=title, group="optimizer", train=train, package=package)
