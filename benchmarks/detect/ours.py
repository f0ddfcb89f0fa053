"""Trimtab's own entry: the judge, as a run or a log would meet it."""

from collections.abc import Sequence

import numpy as np

import trimtab
from benchmarks.detect.contenders import Alarms, Fork, walk
from trimtab.core.block import Block, BoolArray
from trimtab.core.findings import Severity
from trimtab.core.signals import LOSS
from trimtab.judge import Judge
from trimtab.rulesets import RULE_SETS, RuleSet


class JudgeContender:
    """A judge; its findings of alarm level are its alarms."""

    source = f"trimtab {trimtab.__version__}"

    def __init__(self, name: str, rules: RuleSet) -> None:
        self.name = name
        self._rules = rules

    def watch(self, run: Block, forks: Sequence[Fork] = ()) -> Alarms:
        pieces, tails = walk(Judge(rules=self._rules), _flags, run, forks)
        return Alarms(
            run=np.concatenate([alarmed for alarmed, _ in pieces]),
            forks=[alarmed for alarmed, _ in tails],
            warned=[warned for _, warned in tails],
        )


def our_contenders() -> list[JudgeContender]:
    """The judge with the rules it has by default, and with each other set it knows."""
    default = Judge().rules
    others = [rules for rules in RULE_SETS.values() if rules is not default]
    return [
        JudgeContender("trimtab", default),
        *(JudgeContender(f"trimtab --rules {rules.name}", rules) for rules in others),
    ]


def _flags(judge: Judge, block: Block, fork: Fork | None) -> tuple[BoolArray, BoolArray]:
    """The rows with an alarm; those with an alarm or a warning about the loss."""
    alarmed, warned = np.zeros((2, len(block)), dtype=np.bool_)
    for finding in judge.update(block).findings:
        row = block.row_of(finding.tick)
        is_alarm = finding.severity is Severity.ALARM
        alarmed[row] |= is_alarm
        warned[row] |= is_alarm or (finding.severity is Severity.WARN and finding.signal == LOSS)
    return alarmed, warned
