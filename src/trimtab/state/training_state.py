"""TrainingState: the objects of a run whose state a checkpoint holds."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from torch import nn
from torch.optim import Optimizer


class HasState(Protocol):
    """What a scheduler, an EMA or a loader has."""

    def state_dict(self) -> Any:
        """Return all that must be saved."""
        ...

    def load_state_dict(self, state: Any) -> Any:
        """Load a saved state."""
        ...


class TrainingState:
    """The objects of a run."""

    def __init__(
        self,
        model: nn.Module,
        optimizers: Sequence[Optimizer],
        *,
        schedulers: Sequence[HasState] = (),
        scaler: Any = None,
        state: Mapping[str, HasState] | None = None,
    ) -> None:
        self.model = model
        self.optimizers = tuple(optimizers)
        self.schedulers = tuple(schedulers)
        self.scaler = scaler
        self.state = dict(state or {})
        """What else the user names."""
