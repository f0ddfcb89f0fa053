"""Gate: decides about each step between backward and update, on the device, alike on every rank.

Nothing in here waits for the host, and nothing in here may keep a rank from its two meetings with
the others: a bug of ours makes this rank vote OUT, the step is taken everywhere, and all gates part
at the same boundary a few steps later.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import nn
from torch.optim import Optimizer

from trimtab.core import signals
from trimtab.core.config import GateConfig
from trimtab.core.errors import ConfigError
from trimtab.live.measure.sensors import HEAD
from trimtab.live.optimizers import parameters_of
from trimtab.live.protect.discard import Discard, divide_gradients
from trimtab.live.protect.folded_clip import FoldedClip
from trimtab.live.protect.forms import Forms
from trimtab.live.protect.rule import REPORT_NAMES, Rule, Verdict
from trimtab.live.protect.words import VOTE
from trimtab.live.ranks.ballot import DISCARD, OUT, Ballot
from trimtab.live.ranks.boundary import Boundary
from trimtab.live.shield import Shield


@dataclass(slots=True, kw_only=True)
class Decision:
    """What has been decided about the step at hand."""

    total: torch.Tensor
    """The sums over all ranks, as they leave for the host."""
    vote: torch.Tensor
    """What the ranks have agreed on."""
    report: tuple[torch.Tensor, ...] = ()
    """What the host is to know besides; nothing if this rank could not decide."""
    report_names: tuple[str, ...]
    shrink: torch.Tensor | None = None
    """What gradients are to be divided by, because their norm is in excess of the usual."""
    is_discarded: bool | None = None
    """The vote on the host, if somebody had to read it."""
    is_shrunk: bool = False
    """Whether `shrink` is more than 1, if somebody had to read it."""

    def told(self, *, in_full: bool) -> tuple[tuple[str, ...], tuple[torch.Tensor, ...]]:
        """The names and numbers that leave for the host; at least the vote, on every rank."""
        if in_full and self.report:
            return (VOTE, *self.report_names), (self.vote, *self.report)
        return (VOTE,), (self.vote,)


class Gate:
    """Withholds the update of a bad step from every watched optimizer."""

    def __init__(
        self,
        model: nn.Module,
        optimizers: Sequence[Optimizer],
        boundary: Boundary,
        config: GateConfig,
        device: torch.device,
        on_promotion: Callable[[str], None],
    ) -> None:
        self.shield = Shield("protects no longer; it goes on watching")
        self.parted = False
        """Set when all ranks have agreed to protect no longer."""
        self._boundary = boundary
        self._ballot = Ballot(device)
        self.rule = Rule(config, device)
        self._forms = Forms(promote=config.promote, on_promotion=on_promotion)
        self.clip = FoldedClip(model, optimizers, self._forms.reads_flag, device, self.shield)
        self._discard = Discard()
        self._flag = torch.zeros(1, device=device)
        self._found_inf = self._flag[0]
        """The same as torch wants it, without a dimension."""
        self._decision: Decision | None = None
        self._report_names = (
            *REPORT_NAMES,
            *((signals.MAX_RANK_LOSS, signals.MAX_LOSS_RANK) if self._ballot.world > 1 else ()),
        )

    @property
    def joins(self) -> bool:
        """Whether this rank still comes to the meetings of the gates."""
        return not (self.parted or self._boundary.parted)

    def meet(self, shared: torch.Tensor, loss: torch.Tensor | None, *, may_shrink: bool) -> None:
        """Decide about the step together with all ranks; `loss` is None where the guard failed."""
        total = self._boundary.reduce(shared)
        verdict: Verdict | None = None
        if loss is not None and not self.shield.is_down:
            with self.shield.guarding("rule"):
                verdict = self.rule.judge(total[1 : 1 + len(HEAD)], may_scale=may_shrink)
        agreed = self._ballot.cast(None if verdict is None else verdict.discards, loss)
        torch.eq(agreed, DISCARD, out=self._flag)
        decision = Decision(total=total, vote=agreed, report_names=self._report_names)
        self._decision = decision
        if verdict is not None:
            with self.shield.guarding("learn"):
                if may_shrink:
                    decision.shrink = self._agreed_shrink(verdict.shrink, agreed)
                decision.report = self._report(verdict)
                self.rule.learn(verdict)
        self.parted = self.parted or (self.shield.is_down and self._ballot.world == 1)

    def before(self, optimizer: Optimizer) -> None:
        """This optimizer is about to move: hand it the decision, and the clipping to fold in."""
        if self._decision is None and not self.clip.waits(optimizer):
            return
        is_done = False
        with self.shield.guarding("discard"):
            self._prepare(optimizer)
            is_done = True
        if not is_done:
            # The other ranks count on it: what they discard must not be applied here.
            with self.shield.guarding("discard by hand"):
                self._discard.undo(optimizer)
                self._prepare_by_hand(optimizer)

    def after(self, optimizer: Optimizer) -> None:
        """It has moved, or not: leave it as it was found."""
        try:
            with self.shield.guarding("clip"):
                self.clip.done(optimizer)
        finally:
            with self.shield.guarding("undo"):
                self._discard.undo(optimizer)

    def refuse(self, optimizer: Optimizer, why: str) -> None:
        """Give up on an optimizer whose step is more than one update of what was looked at."""
        if self.shield.is_down:
            return
        self.after(optimizer)
        with self.shield.guarding("closure"):
            raise ConfigError(
                f"{type(optimizer).__name__} {why}, so its bad steps cannot be told from its good "
                "ones; use mode='observe' with it"
            )

    def take(self) -> Decision | None:
        """The decision about the step that ends now; None if there was none."""
        decision, self._decision = self._decision, None
        self.clip.forget()
        return decision

    def clear(self) -> None:
        """A new step begins, or none any more: nothing may be left of one that broke off."""
        self._discard.forget()
        self.clip.settle()

    def close(self) -> None:
        """Give the optimizers back as they came."""
        self.parted = True
        for place, end in (("last step", self.clear), ("forms", self._forms.undo)):
            with self.shield.guarding(place):
                end()

    def _prepare(self, optimizer: Optimizer) -> None:
        if not self._forms.reads_flag(optimizer):
            self._prepare_by_hand(optimizer)
            return
        scale = self.clip.scale if self.clip.waits(optimizer) else None
        decision = self._decision
        if decision is not None and decision.shrink is not None:
            scale = decision.shrink if scale is None else torch.maximum(scale, decision.shrink)
        self._discard.by_flag(optimizer, self._found_inf if decision is not None else None, scale)

    def _prepare_by_hand(self, optimizer: Optimizer) -> None:
        self.clip.settle(optimizer)
        decision = self._decision
        if decision is None:
            return
        if decision.is_discarded is None:
            decision.is_discarded, decision.is_shrunk = self._read(decision)
        if decision.is_discarded:
            self._discard.by_hand(optimizer)
        elif decision.is_shrunk and decision.shrink is not None:
            clipped = 1.0 if self.clip.scale is None else self.clip.scale
            further = (decision.shrink / clipped).clamp(min=1.0)
            divide_gradients(parameters_of([optimizer]), further)

    def _read(self, decision: Decision) -> tuple[bool, bool]:
        """Whether the step is discarded and whether it is scaled, in one host read."""
        if decision.shrink is None:
            return bool(self._flag), False
        shrink = float(torch.where(self._found_inf > 0, 0.0, decision.shrink))
        return shrink == 0, shrink > 1

    def _agreed_shrink(self, shrink: torch.Tensor, agreed: torch.Tensor) -> torch.Tensor:
        """What every rank divides by: nothing if one of them could not decide."""
        if self._ballot.world > 1:
            shrink = torch.where(agreed == OUT, 1.0, shrink)
        return shrink[0]

    def _report(self, verdict: Verdict) -> tuple[torch.Tensor, ...]:
        extreme = self._ballot.extreme
        largest = () if extreme is None else (extreme,)
        return (*self.rule.report(verdict), *largest)
