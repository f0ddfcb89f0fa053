"""F06: a run is resumed without some or all of its optimizer state."""

import math

from trimtab.core.causes import Cause
from trimtab.lab.trainer.checkpoints import Run
from trimtab.lab.trainer.intervention import Base, Intervention, RunParts, interpolate
from trimtab.lab.trainer.run_clock import Clock


class StateLost(Intervention):
    """After the resume, moments and step counts are missing for a share of the parameters."""

    cause = Cause.OPTIMIZER_STATE_LOST
    clock = Clock.TICK
    title = "optimizer state lost in a resume"
    strength_name = "of the parameters"
    base = Base.RESUME

    @property
    def strength(self) -> float:
        """From a fifth of the tensors to all of them."""
        return interpolate(0.2, 1.0, self.severity)

    def attach(self, parts: RunParts) -> Run:
        """Delete the state that was just loaded."""
        if parts.first_step != self.onset:
            return parts.run
        named = list(parts.run.model.named_parameters())
        count = math.ceil(self.strength * len(named))
        chosen = sorted(self.random.permutation(len(named))[:count].tolist())
        for name, parameter in (named[place] for place in chosen):
            self.truth.setdefault("parameters", []).append(name)
            del parts.run.optimizer.state[parameter]
        return parts.run
