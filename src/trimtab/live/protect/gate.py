"""Gate: decides about each update between backward and step, alike on every rank.

On a device nothing in here waits for the host: a fused optimizer reads the decision there. Where
the device is the host the decision is known at once, and an optimizer is touched only if its step
is discarded or scaled down. Nothing in here may keep a rank from its exchanges with the others: a
bug of ours makes this rank vote OUT, the step is applied everywhere, and all gates part at the same
exchange a few steps later.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from trimtab.core import signals
from trimtab.core.errors import ConfigError
from trimtab.live.arithmetic import Math, Scalar, Vector, is_finite
from trimtab.live.measure.step_meter import RULE_SUMS, STEP_SUMS, Mark, mark
from trimtab.live.protect.discard import BufferGuard, Discard, divide_gradients
from trimtab.live.protect.fused_support import FUSED_KINDS, FusedSupport
from trimtab.live.protect.gate_reporter import VOTE
from trimtab.live.protect.no_op_proof import why_not_discardable
from trimtab.live.protect.rule import REPORT_NAMES, Rule, Verdict
from trimtab.live.ranks.exchange import DISCARD, OUT, RankSync
from trimtab.live.shield import Shield
from trimtab.state.training_state import parameters_of

_RECORDED = STEP_SUMS.index("recorded")
_GIVEN = STEP_SUMS.index("given_norm")
_SQUARES = STEP_SUMS.index("grad_squares")
_NAN, _INF = STEP_SUMS.index("nan"), STEP_SUMS.index("inf")

_CLIP_EPSILON = 1e-6
"""What `torch.nn.utils.clip_grad_norm_` adds to the norm before it divides."""


@dataclass(slots=True, kw_only=True)
class Decision:
    """What has been decided about a step."""

    vote: Scalar
    """What the ranks have agreed on."""
    report: tuple[Scalar, ...]
    """What the host is to know; at least the vote, on every rank."""
    report_names: tuple[str, ...] = (VOTE,)
    shrink: Scalar | None = None
    """What gradients are to be divided by, because their norm is in excess of the usual."""
    is_discarded: bool | None = None
    """The vote on the host; None if it is on the device and nobody had to read it."""
    is_shrunk: bool = False
    """Whether `shrink` is more than 1, if that is known on the host."""

    @property
    def is_accepted_on_host(self) -> bool:
        """Whether the host knows that the step is applied as it is."""
        return self.is_discarded is False and not self.is_shrunk

    def is_act(self) -> bool:
        """Return whether the step was changed: discarded, or scaled down; waits for the device."""
        is_shrunk = self.shrink is not None and bool(self.shrink > 1)
        return is_shrunk or bool(self.vote == DISCARD)


class Gate:
    """Withholds the update of a bad step from every watched optimizer."""

    is_voting = True
    """Whether ranks vote in every exchange, also once the gate has left."""

    def __init__(
        self,
        model: nn.Module,
        optimizers: Sequence[Optimizer],
        device: torch.device,
        shield: Shield,
        *,
        arithmetic: Math,
        promote: bool = True,
    ) -> None:
        self.shield = shield
        self._math = arithmetic
        self.has_left = False
        """Set when all ranks have agreed to protect no longer, or the only one has failed."""
        self.rule = Rule(arithmetic)
        self._fused = FusedSupport(promote=promote)
        self._proven: set[tuple[Optimizer, bool]] = set()
        """Optimizers that were seen to leave all as it was in a step without gradients, and whether
        they had a state then."""
        for optimizer in optimizers:
            if arithmetic.is_host or not self._fused.may_read_flag(optimizer):
                self._prove(optimizer)
        self._optimizers = optimizers
        self._clipped: dict[Optimizer, Mark] = {}
        """The gradients that the guard's clip has left in this step."""
        self._clip_divisor: Scalar | None = None
        """What the clip divided them by; None if nothing was clipped."""
        self.buffers = BufferGuard(model)
        self._discard = Discard()
        self._found_inf = torch.zeros((), dtype=torch.float32, device=device)
        """Whether the step is discarded, as fused optimizers and buffers read it."""
        self._flag_is_set = False
        """The same on the host, if that is the device."""
        self.decision: Decision | None = None
        """What has been decided about the present step; None before that, and if nothing was."""

    def note_clip(self, norm: torch.Tensor, max_norm: float) -> None:
        """Remember which gradients a clip has left: those need no second look before the update."""
        with self.shield.guarding("clip"), torch.no_grad():
            divisor = (self._math.number(norm) + _CLIP_EPSILON) / max_norm
            self._clip_divisor = self._math.maximum(divisor, 1.0)
            for optimizer in self._optimizers:
                parameters = parameters_of([optimizer])
                # All are referred to: what is taken for clipped is not measured again.
                marked = mark(parameters, num_references=len(parameters))
                if marked.has_gradients:
                    self._clipped[optimizer] = marked

    def is_as_clipped(self, optimizer: Optimizer) -> bool:
        """Return whether the gradients are those that the last clip took the norm of."""
        marked = self._clipped.get(optimizer)
        if marked is None or marked.are_gone():
            return False
        return marked.versions == mark(parameters_of([optimizer])).versions

    def decide(
        self,
        sync: RankSync,
        total: Vector,
        loss: Scalar | None,
        *,
        is_recorded: bool,
        may_scale_down: bool,
        has_bad_data: bool = False,
        harm: torch.Tensor | None = None,
    ) -> None:
        """Decide about a step together with all ranks; `loss` is None where the guard failed.

        While `harm` is above 0 the state is not what training made of it, and waits for an undo.
        `has_bad_data` is what the first rank knows, and its vote is enough.
        """
        sums = total[1 : 1 + len(STEP_SUMS)]
        verdict: Verdict | None = None
        discards: Scalar | None = None
        if loss is not None and not self.shield.is_down:
            try:
                if sync.world == 1 and not is_recorded:
                    discards = self._is_nonfinite(sums)
                else:
                    verdict = self.rule.judge(sums[: len(RULE_SUMS)], may_scale=may_scale_down)
                    discards = self._only_nonfinite_if_unrecorded(sums, verdict, sync)
                if has_bad_data:
                    discards = self._math.one > 0
                elif harm is not None:
                    discards = discards | (self._math.number(harm) > 0)
            except Exception as error:
                self.shield.catch("rule", error)
                discards = None
        agreed = sync.vote(discards, loss)
        # From here on the other ranks count on it, whatever fails in this one.
        self.decision = decision = Decision(vote=agreed, report=(agreed,))
        if verdict is not None and may_scale_down:
            decision.shrink = verdict.shrink
            if sync.world > 1:  # nobody scales down if a rank could not decide
                decision.shrink = self._math.where(agreed == OUT, self._math.one, verdict.shrink)
        try:
            self._settle(decision)
            if verdict is not None:
                names: tuple[str, ...] = REPORT_NAMES
                if largest := sync.largest_loss:
                    names = (*names, signals.MAX_RANK_LOSS, signals.MAX_LOSS_RANK)
                # Both or none: a report that fails must not leave names without values.
                report = (agreed, *self.rule.report(verdict), *largest)
                decision.report_names, decision.report = (VOTE, *names), report
                self.rule.learn(verdict)
        except Exception as error:
            self.shield.catch("decision", error)
        if self.buffers.has_any:
            with self.shield.guarding("buffers"):
                self.buffers.settle(self._found_inf)
        self.has_left = self.has_left or (self.shield.is_down and sync.world == 1)

    def _settle(self, decision: Decision) -> None:
        """Have the decision where optimizers read it: on the device, or on the host."""
        if self._math.is_host:
            decision.is_discarded, decision.is_shrunk = self._read(decision)
            if decision.is_discarded or self._flag_is_set:
                self._found_inf.fill_(decision.is_discarded)
                self._flag_is_set = decision.is_discarded
        else:
            torch.eq(decision.vote, DISCARD, out=self._found_inf)

    def decide_further(self, sync: RankSync, total: Vector) -> None:
        """Decide about one more optimizer of the same step: it may have gone bad since."""
        discards: Scalar | None = None
        before = self.decision
        if before is not None and not self.shield.is_down:
            with self.shield.guarding("further optimizer"):
                nonfinite = self._math.negated(is_finite(total[1 + _SQUARES]))
                discards = (before.vote == DISCARD) | nonfinite
        agreed = sync.vote(discards, None)
        shrink = None if before is None else before.shrink
        self.decision = Decision(vote=agreed, report=(agreed,), shrink=shrink)
        self._settle(self.decision)

    def is_bad(self, sums: Vector, world: int) -> bool:
        """Return whether a step is bad by the numbers of this rank alone; waits for the device."""
        if self.has_left or self.shield.is_down:
            return False
        if bool(self._is_nonfinite(sums)) or bool(sums[_NAN] + sums[_INF]):
            return True
        with self.shield.guarding("own numbers"):
            # Every rank adds its share of the squares; those of the others are about as large.
            own = list(sums) if self._math.is_host else sums.clone()
            own[_SQUARES] *= world
            return bool(self.rule.judge(own[: len(RULE_SUMS)]).discards)
        return False

    def before(self, optimizer: Optimizer) -> bool:
        """Hand the decision to an optimizer that is about to move; return whether it could be.

        The other ranks count on it: what they discard must not be applied here.
        """
        decision = self.decision
        if decision is None:
            return True
        if decision.is_accepted_on_host:  # the optimizer is left alone
            if not self._is_proven(optimizer):
                with self.shield.guarding("proof"):
                    self._prove(optimizer)
            return True
        with self.shield.guarding("discard"):
            self._discard.forget(optimizer)  # what a step that raised has left
            self._prepare(optimizer, decision)
            return True
        with self.shield.guarding("discard via missing gradients"):
            self._discard.undo(optimizer)
            self._prepare_on_host(optimizer, decision)
            return True
        return False

    def after(self, optimizer: Optimizer) -> None:
        """It has moved, or not: leave it as it was found."""
        if self._discard.is_set:
            with self.shield.guarding("undo"):
                self._discard.undo(optimizer)

    def pop_promoted(self) -> list[str]:
        """Return the optimizers that were made fused since the last call, by name."""
        promoted, self._fused.promoted = self._fused.promoted, []
        return promoted

    def refuse(self, optimizer: Optimizer, why: str) -> None:
        """Give up on an optimizer whose step is more than one update of what was looked at."""
        if self.shield.is_down:
            return
        self.after(optimizer)
        with self.shield.guarding("closure"):
            raise ConfigError(
                f"{type(optimizer).__name__} {why}, so its bad steps cannot be discarded; use "
                "mode='observe' with it"
            )

    def end_step(self) -> None:
        self.decision = None
        self._clipped.clear()
        self._clip_divisor = None

    def state_dict(self) -> dict[str, Any]:
        """Return what the next decisions depend on: the tensors themselves, for a snapshot."""
        return self.rule.state_dict(copy=False)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Return to a state; the model has returned already."""
        self.rule.load_state_dict(state)

    def checkpoint_state(self) -> dict[str, Any]:
        """Return what belongs into a checkpoint, as copies."""
        return {"gate": self.rule.state_dict()}

    def load_checkpoint(self, state: dict[str, Any]) -> None:
        if "gate" in state:
            self.rule.load_state_dict(state["gate"])

    def renew_buffers(self) -> None:
        """The buffers were restored: what they were before the last forward pass is no more."""
        self.buffers.renew()

    def forget(self) -> None:
        if self._discard.is_set:
            with self.shield.guarding("new step"):
                self._discard.forget()

    def close(self) -> None:
        self.has_left = True
        self.decision = None
        ends = (("last step", self._discard.forget), ("promotion", self._fused.undo))
        for place, end in ends:
            with self.shield.guarding(place):
                end()

    def _only_nonfinite_if_unrecorded(
        self, sums: Vector, verdict: Verdict, sync: RankSync
    ) -> Scalar:
        """An update that no rank recorded is discarded only if it is not finite."""
        if sync.world == 1:
            return verdict.discards
        nonfinite = self._is_nonfinite(sums)
        return self._math.where(sums[_RECORDED] > 0, verdict.discards, nonfinite)

    def _is_nonfinite(self, sums: Vector) -> Scalar:
        """Whether the gradients are not finite, by the norm that was measured or given."""
        return self._math.negated(is_finite(sums[_GIVEN] + sums[_SQUARES]))

    def _prepare(self, optimizer: Optimizer, decision: Decision) -> None:
        if self._math.is_host or not self._fused.reads_flag(optimizer):
            self._prepare_on_host(optimizer, decision)
            return
        shrink = decision.shrink
        scale = None if shrink is None else self._left_to_shrink(shrink)
        self._discard.via_found_inf(optimizer, self._found_inf, scale)

    def _prepare_on_host(self, optimizer: Optimizer, decision: Decision) -> None:
        self._prove(optimizer)
        if decision.is_discarded is None:
            decision.is_discarded, decision.is_shrunk = self._read(decision)
        if decision.is_discarded:
            self._discard.via_missing_grads(optimizer)
        elif decision.is_shrunk and decision.shrink is not None:
            by = self._left_to_shrink(decision.shrink)
            by = self._found_inf.new_full((), by) if self._math.is_host else by
            divide_gradients(parameters_of([optimizer]), by)

    def _is_proven(self, optimizer: Optimizer) -> bool:
        # torch's own leave out what has no gradient, with a state and without.
        is_known = type(optimizer) in FUSED_KINDS
        return is_known or (optimizer, bool(optimizer.state)) in self._proven

    def _prove(self, optimizer: Optimizer) -> None:
        """Raise ConfigError for an optimizer whose bad steps cannot be discarded.

        Tried twice: some move what they hold as soon as they hold something.
        """
        if not self._is_proven(optimizer):
            self._proven.add((optimizer, bool(optimizer.state)))
            why = why_not_discardable(optimizer)
            if why is not None:
                raise ConfigError(
                    f"{why}, so its bad steps cannot be discarded; use mode='observe'"
                )

    def _read(self, decision: Decision) -> tuple[bool, bool]:
        """Whether the step is discarded and whether it is scaled, in one host read."""
        if self._math.is_host:
            return decision.vote == DISCARD, decision.shrink is not None and decision.shrink > 1
        if decision.shrink is None:
            return bool(self._found_inf), False
        shrink = float(torch.where(self._found_inf > 0, 0.0, decision.shrink))
        return shrink == 0, shrink > 1

    def _left_to_shrink(self, shrink: Scalar) -> Scalar:
        """Return what is left to divide by where gradients have been clipped already."""
        clipped = self._clip_divisor
        return shrink if clipped is None else self._math.maximum(shrink / clipped, 1.0)


class NoGate:
    """The gate of a run that is observed: it decides nothing and touches nothing."""

    is_voting = False
    has_left = True
    decision: Decision | None = None

    def is_as_clipped(self, optimizer: Optimizer) -> bool:
        return True

    def is_bad(self, sums: Vector, world: int) -> bool:
        return False

    def before(self, optimizer: Optimizer) -> bool:
        return True

    def pop_promoted(self) -> list[str]:
        return []

    def state_dict(self) -> dict[str, Any]:
        return {}

    def checkpoint_state(self) -> dict[str, Any]:
        return {}

    def note_clip(self, norm: torch.Tensor, max_norm: float) -> None: ...
    def decide(self, sync: RankSync, total: Vector, *args: Any, **facts: Any) -> None: ...
    def decide_further(self, sync: RankSync, total: Vector) -> None: ...
    def after(self, optimizer: Optimizer) -> None: ...
    def refuse(self, optimizer: Optimizer, why: str) -> None: ...
    def end_step(self) -> None: ...
    def load_state_dict(self, state: dict[str, Any]) -> None: ...
    def load_checkpoint(self, state: dict[str, Any]) -> None: ...
    def renew_buffers(self) -> None: ...
    def forget(self) -> None: ...
    def close(self) -> None: ...
