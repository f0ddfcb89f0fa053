"""Telemetry: what is measured every few steps besides loss and gradient norm.

Loss and gradient norm separate 32 % of faults within six steps; with the optimizer's norms it is
78 % (measured on 41 faults in small models): these are the best buy after the gradient norm.

Ranks may hold different layers (pipeline stages): the vector has a slot for everything that any
rank measures, and a rank leaves zero what it does not have.

`SlowMeter` measures telemetry and activations after an update, when the all-reduce of its step is
over, so they wait there for the next one. Each has a shield of its own.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from trimtab.core import signals
from trimtab.live.measure.activations import Activations
from trimtab.live.measure.by_rank import NAMES, SLOTS, ComputeClock, largest, weigh
from trimtab.live.measure.roles import assign_roles
from trimtab.live.measure.state_hash import StateHash
from trimtab.live.measure.state_sums import BY_ROLE, WHOLE, ShardWeights, sum_state
from trimtab.live.measure.step_meter import GradientNorm, root
from trimtab.live.ranks.rank_group import RankGroup
from trimtab.live.shield import Shields
from trimtab.state.host_copy import local
from trimtab.state.training_state import parameters_of

BY_LAYER = ("param", "grad", "update")
"""What of BY_ROLE is also added up by layer."""

COUNTS = ("adam_step", "has_adam", "elements", "reporting")
"""Adam's steps and the ranks that have them; elements of parameters; ranks that measured."""


class Telemetry:
    """Measures sums on the device, and turns them into signals once they are on the host."""

    def __init__(
        self,
        model: nn.Module,
        optimizers: Sequence[Optimizer],
        gradients: GradientNorm,
        device: torch.device,
    ) -> None:
        self._model = model
        self._optimizers = optimizers
        self._gradients = gradients
        self._device = device
        self.parameters = parameters_of(optimizers)
        """Every parameter that an optimizer moves."""
        roles = assign_roles(model, self.parameters)
        self._role_names, self._layers = roles.names, roles.layers
        self.slots = (
            *(f"{what}:{role}" for what in BY_ROLE for role in roles.names),
            *(f"{what}_layer:{layer}" for what in BY_LAYER for layer in roles.layers),
            *WHOLE,
            *COUNTS,
        )
        """The names of what `measure` returns on this rank, the same at every step."""
        self.prepare()

    def prepare(self) -> None:
        """Look up the parameters: at the start, and when some have been added or replaced."""
        self.parameters = parameters_of(self._optimizers)
        self._index_of = {parameter: index for index, parameter in enumerate(self.parameters)}
        roles = assign_roles(self._model, self.parameters, self._role_names, self._layers)
        copies = [self._gradients.copies_of(parameter) for parameter in self.parameters]
        sizes = [local(parameter).numel() for parameter in self.parameters]
        held = [size / n for size, n in zip(sizes, copies, strict=True)]
        self._weights = ShardWeights(copies, roles, self._device)
        self._num_elements = sum(held)
        """What this rank adds to the number of elements of all ranks."""

    @torch.no_grad()
    def measure(self) -> torch.Tensor:
        """This rank's part of every sum, as one vector in the order of `slots`."""
        if any(parameter not in self._index_of for parameter in parameters_of(self._optimizers)):
            self.prepare()
        state = sum_state(self._optimizers, self._index_of, self._device)
        size = len(self.slots)
        if state is None:
            sums = torch.zeros(size, dtype=torch.float32, device=self._device)
        else:
            values = state.values * self._weights.weights(state.indices)
            by_role, whole = values.split((len(BY_ROLE), len(WHOLE)))
            none = torch.zeros(len(COUNTS), dtype=torch.float32, device=self._device)
            by_layer = torch.stack([values[BY_ROLE.index(what)] for what in BY_LAYER])
            of_roles = self._weights.by_role(state.indices, by_role).flatten()
            of_layers = self._weights.by_layer(state.indices, by_layer).flatten()
            sums = torch.cat((of_roles, of_layers, whole.sum(dim=1), none))
            if state.step is not None:
                sums[size - 4] = state.step
                sums[size - 3] = 1.0
        sums[size - 2] = self._num_elements
        sums[size - 1] = 1.0
        return sums


def read_telemetry(sums: Mapping[str, float], world: int) -> dict[str, float]:
    """The signals that the sums over all ranks give; none if a rank could not measure."""
    if sums.get("reporting") != world:
        return {}
    roles = [slot.removeprefix("param:") for slot in sums if slot.startswith("param:")]
    prefix = "grad_layer:"
    layers = [slot.removeprefix(prefix) for slot in sums if slot.startswith(prefix)]
    found = _norms(signals.PARAM_NORM, "param", sums, roles)
    found |= {f"{signals.GRAD_NORM_OF}{role}": root(sums[f"grad:{role}"]) for role in roles}
    for layer in layers:
        found[f"{signals.GRAD_NORM_OF}layer.{layer}"] = root(sums[f"grad_layer:{layer}"])
        weights = root(sums[f"param_layer:{layer}"])
        found[f"{signals.LAYER_PARAM_NORM}{layer}"] = weights
        if sums["has_adam"] > 0 and weights > 0 and not sums[f"update_layer:{layer}"] < 0:
            ratio = root(sums[f"update_layer:{layer}"]) / weights
            found[f"{signals.LAYER_UPDATE_RATIO}{layer}"] = ratio
    elements = max(sums["elements"], 1.0)
    found[signals.ZERO_GRAD_SHARE] = sums["zeros"] / elements
    if sums["has_adam"] > 0:
        # An update that is not known is not 0: Adam-mini has one second moment for many elements.
        known = [role for role in roles if not sums[f"update:{role}"] < 0]
        if known:
            found |= _norms(signals.ADAM_M_NORM, "m", sums, known)
            found |= _norms(signals.ADAM_V_NORM, "v", sums, known)
            found |= _norms(signals.UPDATE_NORM, "update", sums, known)
        found[signals.GRAD_TO_V_RMS] = root(sums["grad_to_v"] / elements)
        found[signals.ADAM_STEP] = sums["adam_step"] / sums["has_adam"]
        scale = root(sums["adam_grads"]) * found.get(signals.ADAM_M_NORM, 0.0)
        if scale > 0:
            cosine = sums["grad_dot_m"] / scale
            found[signals.GRAD_MOMENTUM_COSINE] = (
                cosine if cosine != cosine else min(max(cosine, -1.0), 1.0)
            )
    return found


def _norms(
    signal: str, what: str, sums: Mapping[str, float], roles: Sequence[str]
) -> dict[str, float]:
    """Return the norm of the whole and of each role."""
    squares = {role: sums[f"{what}:{role}"] for role in roles}
    return {signal: root(sum(squares.values()))} | {
        f"{signal}/{role}": root(square) for role, square in squares.items()
    }


class SlowMeter:
    """What is measured every few steps."""

    def __init__(
        self,
        telemetry: Telemetry,
        hashes: StateHash,
        activations: Activations,
        shields: Shields,
        telemetry_every: int,
        device: torch.device,
    ) -> None:
        self._telemetry = telemetry
        self._hashes = hashes
        self.activations = activations
        self._shields = shields
        self._every = telemetry_every
        self._device = device
        self.slots = (*telemetry.slots, *hashes.slots, *activations.slots)
        """What this rank measures."""
        self._places: torch.Tensor | None = None
        self._rank: int | None = None
        """Of this process, where there are several."""
        self._before: torch.Tensor | None = None
        self._clock = ComputeClock(device)
        self.num_updates = 0
        """Updates so far; every `telemetry_every`-th is measured."""
        self.nothing = torch.zeros(len(self.slots), dtype=torch.float32, device=device)
        """What is sent if nothing was measured: a vector has the same length at every update, so
        that no rank, whatever has failed in it, sends more than another."""
        self._measured: tuple[Any, torch.Tensor] | None = None

    @property
    def parameters(self) -> list[torch.Tensor]:
        return self._telemetry.parameters

    @property
    def _is_due(self) -> bool:
        return self.num_updates % self._every == 0

    def connect(self, group: RankGroup) -> tuple[str, ...]:
        """Return what all ranks measure together: a rank leaves zero what it does not have."""
        self._rank = group.rank if group.world > 1 else None
        slots = group.slots if self._rank is None else (*group.slots, *SLOTS)
        self.nothing = torch.zeros(len(slots), dtype=torch.float32, device=self._device)
        place_of = {slot: place for place, slot in enumerate(slots)}
        own = self.slots if self._rank is None else (*self.slots, *SLOTS)
        places = [place_of[slot] for slot in own]
        is_same = places == list(range(len(slots)))
        self._places = None if is_same else torch.tensor(places, device=self._device)
        return slots

    def learn(self, sums: torch.Tensor) -> None:
        """Take the sums over all ranks: the largest values are what the next are compared with."""
        if self._rank is not None:
            self._before = largest(sums[-len(SLOTS) :])

    def prepare(self, group: RankGroup) -> None:
        """Weigh parameters by how many ranks hold them, once ranks have compared them."""
        with self._shields.telemetry.guarding("ranks"):
            self._telemetry.prepare()
        with self._shields.hashes.guarding("ranks"):
            self._hashes.prepare(group)

    def arm(self) -> None:
        """Measure the next step, if it is the turn of one."""
        if self._is_due and not self._shields.activations.is_down:
            with self._shields.activations.guarding("hooks"):
                self.activations.arm()

    def begin_step(self) -> None:
        """Measure how long this rank takes, if the step is measured."""
        if self._is_due and self._rank is not None and not self._shields.telemetry.is_down:
            with self._shields.telemetry.guarding("clock"):
                self._clock.begin()

    def note_loss(self) -> None:
        if self._clock.is_running:
            with self._shields.telemetry.guarding("clock"):
                self._clock.end()

    def pop(self) -> tuple[Any, torch.Tensor]:
        """Return the note of the step that was measured last and its numbers; None and zeros if
        they were sent already."""
        if self._measured is None:
            return None, self.nothing
        measured, self._measured = self._measured, None
        return measured

    def after_update(self, note: Any) -> bool:
        """Measure an update, if it is the turn of one; returns whether it was."""
        is_measured = self._is_due and self._measure(note)
        self.num_updates += 1
        self.arm()
        return is_measured

    def close(self) -> None:
        with self._shields.activations.guarding("hooks"):
            self.activations.remove()

    def _measure(self, note: Any) -> bool:
        parts = []
        shields = self._shields
        for meter, shield in (
            (self._telemetry, shields.telemetry),
            (self._hashes, shields.hashes),
            (self.activations, shields.activations),
        ):
            found = None
            if not shield.is_down:
                with shield.guarding("measure"):
                    found = meter.measure()
            if found is None:
                size = len(meter.slots)
                found = torch.zeros(size, dtype=torch.float32, device=self._device)
            parts.append(found)
        if self._rank is not None:
            own = torch.full((len(NAMES),), -torch.inf, dtype=torch.float32, device=self._device)
            with shields.telemetry.guarding("own numbers"):
                own[0] = self._clock.seconds()
                own[1:] = self.activations.maxima()
            parts.append(weigh(own, self._rank, self._before))
        with shields.activations.guarding("hooks"):
            self.activations.disarm()
        if shields.telemetry.is_down and shields.activations.is_down:
            return False
        values = torch.cat(parts)
        if self._places is not None:
            values = self.nothing.index_copy(0, self._places, values)
        self._measured = (note, values)
        return True
