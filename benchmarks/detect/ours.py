"""Trimtab's own entry: the judge, as a run or a log would meet it."""

import copy
from collections.abc import Sequence

import numpy as np

import trimtab
from benchmarks.detect.injections import Fork
from trimtab.core.block import Block, BoolArray
from trimtab.core.findings import Severity
from trimtab.core.signals import LOSS
from trimtab.judge import Judge
from trimtab.rulesets import RULE_SETS, RuleSet

Flags = tuple[BoolArray, BoolArray]
"""The rows with an alarm; those with an alarm or a warning about the loss."""


class JudgeContender:
    """A judge; its findings of alarm level are its alarms."""

    source = f"trimtab {trimtab.__version__}"

    def __init__(self, name: str, rules: RuleSet) -> None:
        self.name = name
        self._rules = rules

    def watch(self, run: Block) -> BoolArray:
        return _flags(Judge(rules=self._rules), run)[0]

    def watch_forks(self, run: Block, forks: Sequence[Fork]) -> tuple[BoolArray, list[Flags]]:
        """Say the same of a run, and of the tails of its forks.

        The judge walks the run once and a copy of it sees each tail: what is said is that of the
        whole spliced series, for the price of the tail.
        """
        judge, begin = Judge(rules=self._rules), 0
        pieces: list[BoolArray] = []
        tails: dict[int, Flags] = {}
        for at in sorted(range(len(forks)), key=lambda at: forks[at].row):
            fork = forks[at]
            if fork.row > begin:
                pieces.append(_flags(judge, run[begin : fork.row])[0])
                begin = fork.row
            tails[at] = _flags(copy.deepcopy(judge), fork.tail)
        pieces.append(_flags(judge, run[begin:])[0])
        return np.concatenate(pieces), [tails[at] for at in range(len(forks))]


def our_contenders() -> list[JudgeContender]:
    """The judge with the rules it has by default, and with each other set it knows."""
    default = Judge().rules
    others = [rules for rules in RULE_SETS.values() if rules is not default]
    return [
        JudgeContender("trimtab", default),
        *(JudgeContender(f"trimtab --rules {rules.name}", rules) for rules in others),
    ]


def _flags(judge: Judge, block: Block) -> Flags:
    alarmed, warned = np.zeros((2, len(block)), dtype=np.bool_)
    for finding in judge.update(block).findings:
        row = block.row_of(finding.tick)
        is_alarm = finding.severity is Severity.ALARM
        alarmed[row] |= is_alarm
        warned[row] |= is_alarm or (finding.severity is Severity.WARN and finding.signal == LOSS)
    return alarmed, warned
