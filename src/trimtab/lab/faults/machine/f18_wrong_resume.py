"""F18: a run goes on from the wrong weights, or from the wrong place in its data."""

import dataclasses
from collections import deque
from collections.abc import Iterator
from typing import Any

from torch import Tensor

from trimtab.core.causes import Cause
from trimtab.lab.corpus.data import Batch, Loader
from trimtab.lab.trainer.checkpoints import Run
from trimtab.lab.trainer.disturbance import Base, Disturbance, Parts, between
from trimtab.lab.trainer.touch import before_step, change_batches


class WrongWeights(Disturbance):
    """After the resume the weights are those of an earlier checkpoint; all else is right."""

    cause = Cause.WRONG_RESUME
    title = "old weights at a resume"
    strength_name = "share of the way back to the start"
    base = Base.RESUME
    _kept: dict[str, Tensor]

    @property
    def strength(self) -> float:
        """From a tenth of the steps back to nine tenths."""
        return between(0.1, 0.9, self.severity)

    def attach(self, parts: Parts) -> Run:
        """Keep the weights of an earlier step; put them back after the resume."""
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


class WrongPosition(Disturbance):
    """After the resume the data goes on from an earlier place: batches are seen a second time."""

    cause = Cause.WRONG_RESUME
    title = "an old data position at a resume"
    strength_name = "steps back"
    base = Base.RESUME
    _seen: deque[Batch]

    @property
    def strength(self) -> float:
        """From 10 batches back to 200."""
        return between(10, 200, self.severity)

    def attach(self, parts: Parts) -> Run:
        """Keep the last batches before the resume, and serve them again after it."""
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
    """A loader that begins with batches it has served before."""

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
