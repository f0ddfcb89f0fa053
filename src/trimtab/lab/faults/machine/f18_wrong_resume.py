"""F18: a run resumes with the wrong weights, or at the wrong data position."""

import dataclasses
from collections import deque
from collections.abc import Iterator
from typing import Any

from torch import Tensor

from trimtab.core.causes import Cause
from trimtab.lab.corpus.data import Batch, Loader
from trimtab.lab.trainer.checkpoints import Run
from trimtab.lab.trainer.injection import before_step, change_batches
from trimtab.lab.trainer.intervention import Base, Intervention, RunParts, interpolate
from trimtab.lab.trainer.run_clock import Clock


class WrongWeights(Intervention):
    """After the resume, the weights are those of an earlier step; everything else is correct."""

    cause = Cause.WRONG_RESUME
    clock = Clock.TICK
    title = "old weights after a resume"
    strength_name = "of the steps back to the start"
    base = Base.RESUME
    _kept: dict[str, Tensor]

    @property
    def strength(self) -> float:
        """From a tenth of the steps so far to nine tenths."""
        return interpolate(0.1, 0.9, self.severity)

    def attach(self, parts: RunParts) -> Run:
        """Keep the weights of an earlier step and load them after the resume."""
        source = self.onset - max(1, round(self.strength * self.onset))
        if parts.first_step == self.onset:
            parts.run.model.load_state_dict(self._kept)
            self.truth["weights_of_step"] = source
            return parts.run

        def act(step: int) -> None:
            if step == source:
                state = parts.run.model.state_dict()
                self._kept = {name: value.clone() for name, value in state.items()}

        return before_step(parts.run, act)


class WrongPosition(Intervention):
    """After the resume, the data continues from an earlier position: batches are seen twice."""

    cause = Cause.WRONG_RESUME
    clock = Clock.TICK
    title = "an old data position after a resume"
    strength_name = "steps back"
    base = Base.RESUME
    _seen: deque[Batch]

    @property
    def strength(self) -> float:
        """From 10 batches back to 200."""
        return interpolate(10, 200, self.severity)

    def attach(self, parts: RunParts) -> Run:
        """Keep the last batches before the resume and repeat them after it."""
        back = round(self.strength) * parts.config.accumulate
        if parts.first_step == self.onset:
            self.truth["data_positions"] = [batch.position for batch in self._seen]
            rewound = _Rewound(parts.run.loader, list(self._seen))
            return dataclasses.replace(parts.run, loader=rewound)
        self._seen = deque(maxlen=back)

        def change(step: int, batch: Batch) -> Batch:
            if step < self.onset:
                self._seen.append(batch)
            return batch

        return change_batches(parts.run, change)


class _Rewound:
    """A loader that first repeats batches from before the resume."""

    def __init__(self, loader: Loader, again: list[Batch]) -> None:
        self._loader = loader
        self._again = again

    def __iter__(self) -> Iterator[Batch]:
        yield from self._again
        yield from self._loader

    def state_dict(self) -> dict[str, Any]:
        return self._loader.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._loader.load_state_dict(state)
