"""Parts: what a guard is made of, before it knows of other ranks."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import nn
from torch.optim import Optimizer

from trimtab.core.config import Config, Mode
from trimtab.core.errors import ConfigError
from trimtab.live.host.run_recorder import RunRecorder
from trimtab.live.measure.activations import Activations
from trimtab.live.measure.slow_meter import SlowMeter
from trimtab.live.measure.step_meter import StepMeter
from trimtab.live.measure.telemetry import Telemetry
from trimtab.live.optimizers import find_optimizers, parameters_of
from trimtab.live.protect.gate import Gate
from trimtab.live.shield import Shields
from trimtab.state.host_copy import local

EVERY_SECOND = 2
"""A run that recovers by itself measures every second step, and only a sample of each tensor. At
every tenth step, detectors of jumps would need 640 steps before they judge anything, and a jump
between two measured steps would be compared with a normal change of ten. Every step would cost
twice as much and find a flipped weight one step earlier at most."""


@dataclass(slots=True)
class Parts:
    """The parts of a guard that do not know of other ranks."""

    optimizers: tuple[Optimizer, ...]
    meter: StepMeter
    slow: SlowMeter
    shields: Shields
    gate: Gate | None = None
    recorder: RunRecorder | None = None
    report_promotion: Callable[[str], None] = lambda name: None

    @classmethod
    def build(cls, model: nn.Module, optimizer: Any, config: Config, mode: Mode) -> "Parts":
        """Make the parts; raises ConfigError for what cannot be watched."""
        optimizers = find_optimizers(optimizer, is_protected=mode.is_protected)
        parameters = parameters_of(optimizers)
        if not parameters:
            raise ConfigError("the optimizer has no parameters; add them before trimtab.watch")
        device = local(parameters[0]).device
        shields = Shields()
        meter = StepMeter(optimizers, device)
        live = config.live
        decides = mode is Mode.RECOVER and config.ladder.enabled
        slow = SlowMeter(
            Telemetry(model, optimizers, meter.gradients, device, is_sampled=decides),
            Activations(model, device) if live.activations else None,
            shields,
            EVERY_SECOND if decides else live.telemetry_every,
            device,
        )
        parts = cls(optimizers, meter, slow, shields)
        if mode.is_protected:
            parts.gate = Gate(
                model,
                optimizers,
                device,
                shields.gate,
                lambda name: parts.report_promotion(name),
                promote=config.gate.promote,
            )
        return parts

    def undo(self) -> None:
        """Remove every trace of a start that failed."""
        self.slow.disarm()
        if self.gate is not None:
            self.gate.close()
        if self.recorder is not None:
            self.recorder.journal.close("could not start")
