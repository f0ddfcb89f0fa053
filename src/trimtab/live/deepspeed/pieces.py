"""EnginePieces: what a rank holds of the weights of an engine, as something that can be measured.

Under ZeRO the fp32 weights of this rank lie one after the other in flat tensors, and Adam's moments
in others of the same shape. Where, says `_hp_mapping` of a parameter (ZeRO 1 and 2, BF16_Optimizer)
or the optimizer's `grad_position` (ZeRO 3). `EngineTelemetry` measures these pieces as it does the
parameters of an optimizer. Each is held by one rank.

Gradients are freed in the update, so their norms are taken before it, piece by piece: a copy of
them would need memory that a large run does not have.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from trimtab.live.deepspeed.engine import Engine
from trimtab.live.measure.step_meter import GradientNorm
from trimtab.live.measure.telemetry import Telemetry


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a piece lies."""

    name: str
    parameter: Any
    """The parameter of the model that it is of."""
    flat: torch.Tensor
    start: int
    numel: int
    group: int
    """The number of the group of the torch optimizer inside."""


class EnginePieces:
    """The pieces of this rank, in the place of a model and of its optimizer."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._inside: Any = engine.optimizers[0]
        self._places = {_cut(place): place for place in _find(engine)}
        self._norms: list[torch.Tensor] = []

    def named_parameters(self) -> Iterator[tuple[str, torch.Tensor]]:
        for piece, place in self._places.items():
            yield place.name, piece

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """The groups of the torch optimizer, with pieces in place of flat tensors."""
        inside = self._inside
        # Both optimizers of DeepSpeed have `adam_w_mode`.
        is_decoupled = getattr(inside, "adam_w_mode", isinstance(inside, torch.optim.AdamW))
        default = {"decoupled_weight_decay": bool(is_decoupled)}
        groups = [{**default, **group, "params": []} for group in inside.param_groups]
        for piece, place in self._places.items():
            groups[place.group]["params"].append(piece)
        return groups

    @property
    def state(self) -> "EnginePieces":
        return self

    def get(self, piece: torch.Tensor, default: Any = None) -> Any:
        place = self._places[piece]
        found: Mapping[str, Any] = self._inside.state.get(place.flat, {})
        return {
            name: value.narrow(0, place.start, place.numel)
            if isinstance(value, torch.Tensor) and value.shape == place.flat.shape
            else value
            for name, value in found.items()
        } or default

    def __getitem__(self, piece: torch.Tensor) -> Any:
        return self.get(piece)

    @torch.no_grad()
    def note_gradients(self) -> None:
        """Give each piece a gradient of one number, repeated, that has the norm of the true one."""
        by = self._engine.loss_scale
        for piece, place in self._places.items():
            gradient = _gradient(place)
            if gradient is None:
                piece.grad = None
                continue
            norm = torch.linalg.vector_norm(gradient, dtype=torch.float32)
            piece.grad = (norm / (by * math.sqrt(place.numel))).expand(place.numel)

    def forget_gradients(self) -> None:
        for piece in self._places:
            piece.grad = None


class EngineTelemetry(Telemetry):
    """Telemetry of the pieces; without what compares each element of a gradient with a moment."""

    def __init__(self, engine: Engine, gradients: GradientNorm, device: torch.device) -> None:
        self._of_engine = EnginePieces(engine)
        pieces: Any = self._of_engine
        super().__init__(pieces, (pieces,), gradients, device)

    @property
    def shared(self) -> list[torch.Tensor]:
        """Pieces are on one rank only: there is nothing to compare."""
        return []

    def note_gradients(self) -> None:
        self._of_engine.note_gradients()

    def begin(self, *, is_whole: bool) -> None:
        super().begin(is_whole=False)
        self._of_engine.forget_gradients()


def _cut(place: Place) -> torch.Tensor:
    return place.flat.detach().narrow(0, place.start, place.numel)


def _find(engine: Engine) -> Iterator[Place]:
    """Yield the pieces on the device; none where the optimizer keeps no flat weights of ZeRO, or
    keeps them elsewhere."""
    optimizer, device = engine.optimizer, engine.device
    for name, parameter in engine.module.named_parameters():
        if not parameter.requires_grad:
            continue
        if hasattr(parameter, "ds_id"):
            found = _place_of_zero3(optimizer, name, parameter)
        else:
            found = _place_of_mapping(optimizer, name, parameter)
        if found is not None and found.numel and found.flat.device.type == device.type:
            yield found


def _place_of_zero3(optimizer: Any, name: str, parameter: Any) -> Place | None:
    if getattr(optimizer, "swap_optimizer", False):  # on a disk
        return None
    sub_group, start, numel = optimizer.grad_position[optimizer.get_param_id(parameter)]
    # What fills the last parts up is no weight: memory as it was found.
    rank = torch.distributed.get_rank(parameter.ds_process_group)
    numel = min(numel, max(int(parameter.ds_numel) - rank * numel, 0))
    return Place(
        name=name,
        parameter=parameter,
        flat=optimizer.fp32_partitioned_groups_flat[sub_group],
        start=start,
        numel=numel,
        group=optimizer.sub_group_to_group_id[sub_group],
    )


def _place_of_mapping(optimizer: Any, name: str, parameter: Any) -> Place | None:
    mapping = getattr(parameter, "_hp_mapping", None)
    for flats in ("single_partition_of_fp32_groups", "fp32_groups_flat_partition"):
        if mapping is not None and hasattr(optimizer, flats):
            group, address = mapping.param_group_index, mapping.get_hp_fragment_address()
            flat = getattr(optimizer, flats)[group]
            return Place(
                name=name,
                parameter=parameter,
                flat=flat,
                start=address.start,
                numel=address.numel,
                group=group,
            )
    return None


def _gradient(place: Place) -> torch.Tensor | None:
    """Return the gradient of a piece before the update, still times the loss scale."""
    parameter = place.parameter
    if hasattr(parameter, "ds_id"):
        found = parameter._z3_optimizer.get_local_fp32_grad_for_param(parameter)
    else:
        found = parameter._hp_mapping.get_lp_grad_fragment(parameter._index_in_param_group)
    return None if found is None else found.reshape(-1)[: place.numel]
