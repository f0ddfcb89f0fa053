"""EngineGate: the gate of an engine that asks before its update, and skips it by itself."""

from dataclasses import replace
from typing import Any

from torch import nn
from torch.optim import Optimizer

from trimtab.live.arithmetic import Math, Scalar, Vector
from trimtab.live.protect.gate import Gate, NoGate
from trimtab.live.protect.rule import Rule, Verdict
from trimtab.live.ranks.exchange import RankSync
from trimtab.live.shield import Shield


class SkipRule(Rule):
    """The rule of every gate, for one that can only skip: what is elsewhere scaled down back to
    the usual norm is discarded."""

    def judge(self, sums: Vector, *, may_scale: bool = True) -> Verdict:
        verdict = super().judge(sums, may_scale=False)
        discards = verdict.discards | verdict.is_excess | verdict.is_extreme
        return replace(verdict, discards=discards)


class EngineGate(Gate):
    """Decides like every gate, and tells the engine; no optimizer is touched."""

    def __init__(self, model: nn.Module, shield: Shield, *, arithmetic: Math, device: Any) -> None:
        super().__init__(model, (), device, shield, arithmetic=arithmetic)
        self.rule = SkipRule(arithmetic)
        self.is_too_late = False
        """Whether the engine has not asked in this update: then it has acted already."""
        self.discards = False
        """The answer for the engine, the same on every rank."""

    def decide(self, sync: RankSync, total: Vector, loss: Scalar | None, **facts: Any) -> None:
        if not self.is_too_late:
            super().decide(sync, total, loss, **facts)
        elif sync.world > 1:
            sync.accept()

    def is_as_clipped(self, optimizer: Optimizer) -> bool:
        """The norm that the engine asks with is all that there is to know of the gradients."""
        return True

    def before(self, optimizer: Optimizer) -> bool:
        """Answer the engine; return whether that was possible."""
        decision, self.discards = self.decision, False
        if decision is None:
            return True
        with self.shield.guarding("answer to the engine"):
            if decision.is_discarded is None:
                # The engine waits for the device at this very place, to read its own answer.
                decision.is_discarded, _ = self._read(decision)
            self.discards = bool(decision.is_discarded)
            return True
        return False


class NoEngineGate(NoGate):
    """The gate of an engine that is observed."""

    is_too_late = False
    discards = False
