"""What a checkpoint holds, by parameter names: any number of ranks and any layout can read it.

Loading writes into the live tensors. What is not a tensor of the model or of an optimizer (options
of the groups, schedulers, scaler, the user's `state`) is put back by `put_content` after that.
"""

from typing import Any

from torch.distributed.checkpoint.state_dict import get_state_dict

from trimtab.restore.training_state import TrainingState

_NAMES = "params"


def content_of(state: TrainingState) -> dict[str, Any]:
    """The state as a nested dict; its tensors are the live ones.

    Optimizer state that does not exist yet is made, with zeros, as a fresh process needs it.
    """
    model, optimizers = get_state_dict(state.model, state.optimizers)
    return {
        "model": model,
        "optimizers": optimizers,
        "schedulers": {str(n): s.state_dict() for n, s in enumerate(state.schedulers)},
        "scaler": {} if state.scaler is None else state.scaler.state_dict(),
        "state": {name: part.state_dict() for name, part in state.state.items()},
    }


def put_content(state: TrainingState, content: dict[str, Any]) -> None:
    """Put back what was loaded besides tensors; options last: schedulers do not write them."""
    for number, scheduler in enumerate(state.schedulers):
        scheduler.load_state_dict(content["schedulers"][str(number)])
    if state.scaler is not None:
        state.scaler.load_state_dict(content["scaler"])
    for name, part in state.state.items():
        part.load_state_dict(content["state"][name])
    groups = content["optimizers"]["param_groups"]
    live = [group for optimizer in state.optimizers for group in optimizer.param_groups]
    for group, saved in zip(live, groups, strict=True):
        for name, value in saved.items():
            if name != _NAMES:
                group[name] = value
