"""Contenders: loops that train the same model, each with another guard around it, or none.

The peers are installed by hand, beside the project and its environment:
`pip install ai2-olmo-core lightning trainscope stabilityguard`. Who is missing is left out.
"""

import importlib
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import trimtab
from trimtab.core.config import Config, LiveConfig
from trimtab.lab.model.gpt import Gpt
from trimtab.lab.model.optimizer import OptimizerConfig, make_optimizer
from trimtab.lab.model.sizes import SIZES

MAX_NORM = 1.0
LR = 3e-4


class Contender:
    """One model that is trained in turn with the others, here without any guard."""

    def __init__(self, size: str, folder: Path) -> None:
        self.model = Gpt(SIZES[size], generator=torch.Generator().manual_seed(0))
        self.optimizer: Any = make_optimizer(self.model, OptimizerConfig(lr=LR))
        self.folder = folder
        self.number = 0
        self.wholes: list[float] = []
        """CPU time of each step."""
        self.tails: list[float] = []
        """The same from the end of backward on."""

    def step(self, tokens: torch.Tensor) -> None:
        """One step, timed."""
        started = time.process_time()
        loss = self.model(tokens, tokens).loss
        self.record(loss, tokens)
        loss.backward()
        backward = time.process_time()
        self.update(loss)
        self.optimizer.zero_grad()
        ended = time.process_time()
        self.number += 1
        self.wholes.append(ended - started)
        self.tails.append(ended - backward)

    def record(self, loss: torch.Tensor, tokens: torch.Tensor) -> None:
        """Tell the guard of the loss."""

    def update(self, loss: torch.Tensor) -> None:
        """Clip and step."""
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), MAX_NORM)
        self.optimizer.step()

    def close(self) -> None:
        """Let the guard end."""


class Trimtab(Contender):
    """Our own guard, in a mode and with or without what is measured every ten steps."""

    def __init__(self, size: str, folder: Path, *, mode: str, telemetry: bool = True) -> None:
        super().__init__(size, folder)
        live = LiveConfig() if telemetry else LiveConfig(telemetry_every=10**9, activations=False)
        self.guard = trimtab.watch(
            self.model, self.optimizer, run_dir=folder, mode=mode, config=Config(live=live)
        )

    def record(self, loss: torch.Tensor, tokens: torch.Tensor) -> None:
        self.guard.record(loss=loss, tokens=tokens.numel())

    def update(self, loss: torch.Tensor) -> None:
        self.guard.clip_grad_norm_(MAX_NORM)
        self.optimizer.step()

    def close(self) -> None:
        self.guard.close()


class OlmoSkipStep(Contender):
    """OLMo-core: an optimizer of its own that multiplies every term by 0 or 1."""

    def __init__(self, size: str, folder: Path) -> None:
        kind = importlib.import_module("olmo_core.optim").SkipStepAdamW
        super().__init__(size, folder)
        self.optimizer = kind(self.model.parameters(), lr=LR)

    def update(self, loss: torch.Tensor) -> None:
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), MAX_NORM)
        self.optimizer.latest_loss = loss.detach()
        self.optimizer.latest_grad_norm = norm
        self.optimizer.step()


class LightningSpikes(Contender):
    """Lightning: looks at the loss after the update, and raises."""

    def __init__(self, size: str, folder: Path) -> None:
        fabric = importlib.import_module("lightning.fabric").Fabric
        spike = importlib.import_module("lightning.fabric.utilities.spike")
        super().__init__(size, folder)
        self.fabric = fabric(accelerator="cpu", devices=1)
        self.detection = spike.SpikeDetection(exclude_batches_path=str(folder))

    def update(self, loss: torch.Tensor) -> None:
        super().update(loss)
        self.detection.on_train_batch_end(self.fabric, loss.detach(), None, self.number)


class Trainscope(Contender):
    """trainscope: records and reports, changes nothing."""

    def __init__(self, size: str, folder: Path) -> None:
        package = importlib.import_module("trainscope")
        super().__init__(size, folder)
        config = package.TrainScopeConfig(run_dir=str(folder))
        self.scope = package.TrainScope(self.model, self.optimizer, config).attach()

    def update(self, loss: torch.Tensor) -> None:
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), MAX_NORM)
        self.optimizer.step()
        self.scope.step(float(loss.detach()), clip_grad_norm=float(norm))

    def close(self) -> None:
        self.scope.detach()


class StabilityGuard(Contender):
    """stabilityguard: norms by layer in backward hooks, a decision on the host."""

    def __init__(self, size: str, folder: Path) -> None:
        package = importlib.import_module("stabilityguard")
        super().__init__(size, folder)
        self.optimizer = package.GuardedOptimizer(
            self.optimizer, self.model, log_dir=str(folder), verbose=False
        )


Make = Callable[[str, Path], Contender]

PEERS: dict[str, Make] = {
    "OLMo-core SkipStepAdamW": OlmoSkipStep,
    "Lightning SpikeDetection": LightningSpikes,
    "trainscope": Trainscope,
    "stabilityguard": StabilityGuard,
}


def make_all(makes: dict[str, Make], size: str, folder: Path) -> dict[str, Contender]:
    """Those that can be made here; who cannot is named with the reason."""
    made = {}
    for number, (name, make) in enumerate(makes.items()):
        try:
            place = folder / str(number)
            place.mkdir(parents=True)
            made[name] = make(size, place)
        except Exception as error:  # whatever keeps a peer from running here, the others go on
            print(f"{name} left out: {type(error).__name__}: {error}")
    return made
