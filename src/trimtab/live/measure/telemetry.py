"""Telemetry: what is measured every few steps besides loss and gradient norm.

Loss and gradient norm separate 32 % of faults within six steps; with the optimizer's norms it is
78 % (measured on 41 faults in small models): these are the best buy after the gradient norm.

Ranks may hold different layers (pipeline stages): the vector has a slot for everything that any
rank measures, and a rank leaves zero what it does not have.

`TelemetrySampler` measures telemetry and activations after an update, when the all-reduce of its
step is over, so they wait there for the next one; `PassSchedule` says after which. Each has a
shield of its own.
"""

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from trimtab.core import signals
from trimtab.live.measure.activations import Activations
from trimtab.live.measure.by_rank import NAMES, SLOTS, ComputeClock, largest, weigh
from trimtab.live.measure.pass_schedule import (
    PLAN,
    UNKNOWN_PLAN,
    PassCost,
    PassSchedule,
    Plan,
)
from trimtab.live.measure.roles import assign_roles
from trimtab.live.measure.state_hash import StateHash
from trimtab.live.measure.state_sums import (
    BY_LAYER,
    BY_ROLE,
    RARE,
    Layout,
    StateChanged,
    StateSums,
    on_device,
    traits,
)
from trimtab.live.measure.step_meter import GradientNorm, root
from trimtab.live.measure.time_budget import Stopwatch
from trimtab.live.ranks.rank_group import RankGroup
from trimtab.live.shield import Shield, Shields
from trimtab.state.host_copy import local
from trimtab.state.training_state import parameters_of

COUNTS = ("adam_step", "has_adam", "elements", "reporting", "rare_reporting")
"""Adam's steps and the ranks that have them; elements of parameters; ranks that measured, and that
measured the sums of RARE."""

MAX_LAYOUTS = 8
"""Sets of parameters whose layout is kept: where layers are dropped at random, every step has
another set."""


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
        self._roles = assign_roles(model, self.parameters)
        self._sums = (
            *(f"{what}:{role}" for what in BY_ROLE for role in self._roles.names),
            *(f"{what}_layer:{layer}" for what in BY_LAYER for layer in self._roles.layers),
            *RARE,
        )
        self.slots = (*self._sums, *COUNTS)
        """The names of what `measure` returns on this rank, the same at every step."""
        self._pass: StateSums | None = None
        self._is_whole = False
        self.num_chunks = 1
        """How many slices a pass can have."""
        self.prepare()

    @property
    def shared(self) -> list[torch.Tensor]:
        """The parameters that other ranks may hold as well."""
        return self.parameters

    def note_gradients(self) -> None:
        """The gradients are there, for who does not find them after the update."""

    def prepare(self) -> None:
        """Look up the parameters: at the start, and when some have been added or replaced."""
        self.parameters = parameters_of(self._optimizers)
        self._index_of = {parameter: index for index, parameter in enumerate(self.parameters)}
        names, layers = self._roles.names, self._roles.layers
        self._roles = assign_roles(self._model, self.parameters, names, layers)
        self._copies = [self._gradients.copies_of(parameter) for parameter in self.parameters]
        sizes = [local(parameter).numel() for parameter in self.parameters]
        # What this rank adds to the number of elements of all ranks.
        held = sum(size / n for size, n in zip(sizes, self._copies, strict=True))
        self._counts = {
            (has_adam, is_whole): on_device([has_adam, held, 1.0, is_whole], self._device)
            for has_adam in (0.0, 1.0)
            for is_whole in (0.0, 1.0)
        }
        self._layouts: OrderedDict[tuple[Any, ...], Layout] = OrderedDict()

    def measure(self) -> torch.Tensor:
        """Return this rank's part of every sum, as one vector in the order of `slots`."""
        self.begin(is_whole=True)
        self.advance(1.0)
        return self.finish()

    @torch.no_grad()
    def begin(self, *, is_whole: bool) -> None:
        """Begin a pass: sum up the gradients of this step."""
        if any(parameter not in self._index_of for parameter in parameters_of(self._optimizers)):
            self.prepare()
        self._is_whole = is_whole
        found = tuple(traits(self._optimizers, self._index_of, self._device))
        key = tuple((one.number, *one[3:]) for one in found)
        layout = self._layouts.pop(key, None)
        if layout is None:
            layout = Layout(found, self._copies, self._roles, self._sums, self._device)
        self._layouts[key] = layout
        self.num_chunks = len(layout.chunks)
        if len(self._layouts) > MAX_LAYOUTS:
            self._layouts.popitem(last=False)
        self._pass = StateSums(layout, len(self._sums), self._device, is_whole=is_whole)

    @torch.no_grad()
    def advance(self, share: float) -> None:
        """Sum up weights and moments, up to this share of them; in a later step than the gradients
        if the pass is spread. By how much they move in some updates is a matter of rounding."""
        if self._pass is not None:
            try:
                self._pass.advance(share)
            except StateChanged:
                self._pass = None

    @torch.no_grad()
    def finish(self) -> torch.Tensor:
        """Return the vector; zeros if the state has changed since the pass began."""
        if self._pass is None:
            return torch.zeros(len(self.slots), dtype=torch.float32, device=self._device)
        sums, step = self._pass.finish()
        self._pass = None
        has_adam = step is not None
        counts = self._counts[float(has_adam), float(self._is_whole)]
        first = sums.new_zeros(1) if step is None else step.reshape(1)
        return torch.cat((sums, first, counts))


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
    has_rare = sums["rare_reporting"] == world
    if has_rare:
        found[signals.ZERO_GRAD_SHARE] = sums["zeros"] / elements
    if sums["has_adam"] > 0:
        # An update that is not known is not 0: Adam-mini has one second moment for many elements.
        known = [role for role in roles if not sums[f"update:{role}"] < 0]
        if known:
            found |= _norms(signals.ADAM_M_NORM, "m", sums, known)
            found |= _norms(signals.ADAM_V_NORM, "v", sums, known)
            found |= _norms(signals.UPDATE_NORM, "update", sums, known)
        found[signals.ADAM_STEP] = sums["adam_step"] / sums["has_adam"]
    if sums["has_adam"] > 0 and has_rare:
        found[signals.GRAD_TO_V_RMS] = root(sums["grad_to_v"] / elements)
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
    squares = {role: sums[f"{what}:{role}"] for role in roles}
    return {signal: root(sum(squares.values()))} | {
        f"{signal}/{role}": root(square) for role, square in squares.items()
    }


@dataclass(slots=True, kw_only=True)
class _Pass:
    """One measurement, from the step that it is of to the one in which it is complete."""

    note: Any
    plan: Plan
    cost: PassCost
    vectors: list[torch.Tensor] = field(default_factory=list)
    """What was measured, in the order of slots after PLAN."""


class TelemetrySampler:
    """What is measured in some steps."""

    def __init__(
        self,
        telemetry: Telemetry,
        hashes: StateHash,
        activations: Activations,
        shields: Shields,
        schedule: PassSchedule,
        device: torch.device,
    ) -> None:
        self._telemetry = telemetry
        self._hashes = hashes
        self.activations = activations
        self._shields = shields
        self._schedule = schedule
        self._device = device
        self.slots = (*PLAN, *telemetry.slots, *hashes.slots, *activations.slots)
        """What this rank measures."""
        self._places: torch.Tensor | None = None
        self._plan_places: list[int] = []
        self._rank: int | None = None
        """Of this process, where there are several."""
        self._before: torch.Tensor | None = None
        self._clock = ComputeClock(device)
        self.num_updates = 0
        """Updates so far; `schedule` says which are measured."""
        self.nothing = torch.zeros(len(self.slots), dtype=torch.float32, device=device)
        """What is sent if nothing was measured: a vector has the same length at every update, so
        that no rank, whatever has failed in it, sends more than another."""
        self._pass: _Pass | None = None
        self._last_note: Any = None
        """The step that the last pass is of."""
        self._measured: tuple[Any, torch.Tensor] | None = None

    @property
    def shared(self) -> list[torch.Tensor]:
        return self._telemetry.shared

    def note_gradients(self) -> None:
        """An update is about to begin that frees the gradients."""
        if self._is_measured and not self._shields.telemetry.is_down:
            with self._shields.telemetry.guarding("gradients"):
                self._telemetry.note_gradients()

    @property
    def _is_measured(self) -> bool:
        return self._schedule.is_measured(self.num_updates)

    @property
    def _own_slots(self) -> tuple[str, ...]:
        return self.slots if self._rank is None else (*self.slots, *SLOTS)

    def connect(self, group: RankGroup) -> tuple[str, ...]:
        """Return what all ranks measure together: a rank leaves zero what it does not have."""
        self._rank = group.rank if group.world > 1 else None
        slots = group.slots if self._rank is None else (*group.slots, *SLOTS)
        self.nothing = torch.zeros(len(slots), dtype=torch.float32, device=self._device)
        place_of = {slot: place for place, slot in enumerate(slots)}
        places = [place_of[slot] for slot in self._own_slots]
        is_same = places == list(range(len(slots)))
        self._places = None if is_same else torch.tensor(places, device=self._device)
        self._plan_places = [place_of[slot] for slot in PLAN]
        self._pass = self._measured = None
        self._schedule.restart(self.num_updates)
        return slots

    def learn(self, sums: torch.Tensor) -> None:
        """Take the sums over all ranks: the largest values are what the next are compared with."""
        if self._rank is not None:
            self._before = largest(sums[-len(SLOTS) :])

    def receive(self, note: Any, values: Sequence[float]) -> None:
        """Take the sums over all ranks once they are on the host, at the same exchange on every
        rank: they say which update is measured next."""
        if note is self._last_note:
            plan = Plan.from_values([values[place] for place in self._plan_places])
            self._schedule.adopt(plan, self.num_updates)

    def prepare(self, group: RankGroup) -> None:
        """Weigh parameters by how many ranks hold them, once ranks have compared them."""
        with self._shields.telemetry.guarding("ranks"):
            self._telemetry.prepare()
        with self._shields.hashes.guarding("ranks"):
            self._hashes.prepare(group)

    def arm(self) -> None:
        """Measure the next step, if it is the turn of one."""
        if self._is_measured and not self._shields.activations.is_down:
            with self._shields.activations.guarding("hooks"):
                self.activations.arm()

    def begin_step(self) -> None:
        if self._is_measured and self._rank is not None and not self._shields.telemetry.is_down:
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
        """Measure an update, if it is the turn of one; returns whether its numbers will come."""
        shields, is_begun = self._shields, False
        if self._schedule.is_due(self.num_updates):
            plan = self._schedule.begin(self.num_updates)
            is_begun = not (shields.telemetry.is_down and shields.activations.is_down)
            if is_begun:
                self._last_note = note
                cost = PassCost(self.activations.seconds)
                self._pass = _Pass(note=note, plan=plan, cost=cost)
        if self._pass is not None:
            self._advance(self._pass)
        self.num_updates += 1
        self.arm()
        return is_begun

    def close(self) -> None:
        with self._shields.activations.guarding("hooks"):
            self.activations.remove()

    def _advance(self, one: _Pass) -> None:
        """Measure one slice: at first what must be of this very step, then weights and moments."""
        telemetry, shield, plan = self._telemetry, self._shields.telemetry, one.plan
        watch = Stopwatch(self._device)
        watch.start()
        if plan.slices and not one.cost.watches:
            self._begin(one)
        one.cost.watches.append(watch)
        count = len(one.cost.watches)
        if plan.slices and not shield.is_down:
            with shield.guarding("measure"):
                telemetry.advance((count - 1) / (plan.slices - 1) if plan.slices > 1 else 1.0)
        if count < plan.slices:
            watch.stop()
            return
        self._pass = None
        if plan.slices:
            one.vectors.insert(0, self._guarded(telemetry, shield, telemetry.finish))
        else:
            size = len(self._own_slots) - len(PLAN)
            one.vectors.append(torch.zeros(size, dtype=torch.float32, device=self._device))
        watch.stop()
        if plan.slices:
            self._schedule.end(plan, one.cost)
        self._send(one)

    def _begin(self, one: _Pass) -> None:
        """Measure what belongs to the step in which a pass begins."""
        shields, hashes, activations = self._shields, self._hashes, self.activations
        if not shields.telemetry.is_down:
            with shields.telemetry.guarding("measure"):
                self._telemetry.begin(is_whole=one.plan.is_whole)
        found = torch.zeros(len(hashes.slots), dtype=torch.float32, device=self._device)
        if one.plan.is_whole:
            found = self._guarded(hashes, shields.hashes, hashes.measure)
        one.vectors += (
            found,
            self._guarded(activations, shields.activations, activations.measure),
        )
        if self._rank is not None:
            own = torch.full((len(NAMES),), -torch.inf, dtype=torch.float32, device=self._device)
            with shields.telemetry.guarding("own numbers"):
                seconds = torch.full_like(own[:1], self._clock.seconds())
                own = torch.cat((seconds, activations.maxima()))
            one.vectors.append(weigh(own, self._rank, self._before))
        with shields.activations.guarding("hooks"):
            activations.disarm()

    def _guarded(
        self,
        meter: Telemetry | StateHash | Activations,
        shield: Shield,
        measure: Callable[[], torch.Tensor],
    ) -> torch.Tensor:
        """Return what was measured; zeros if that failed, now or before."""
        if not shield.is_down:
            with shield.guarding("measure"):
                return measure()
        return torch.zeros(len(meter.slots), dtype=torch.float32, device=self._device)

    def _send(self, one: _Pass) -> None:
        """Keep the vector for the next exchange, with the plan of the first rank."""
        most = self._telemetry.num_chunks + 1
        plan = UNKNOWN_PLAN if self._rank else self._schedule.propose(most_slices=most)
        watch = Stopwatch(self._device)
        watch.start()
        values = torch.cat((on_device(plan.values, self._device), *one.vectors))
        if self._places is not None:
            values = self.nothing.index_copy(0, self._places, values)
        self._measured = (one.note, values)
        watch.stop()
        one.cost.watches.append(watch)
