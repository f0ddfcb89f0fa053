"""Trimtab's own entry: the judge, as a run or a log would meet it."""

import copy
from collections.abc import Sequence

import numpy as np

import trimtab
from benchmarks.detect.contenders import Alarms, Fork
from trimtab.core.block import Block, BoolArray
from trimtab.core.findings import Severity
from trimtab.judge import Judge
from trimtab.rulesets import RULE_SETS, RuleSet


class JudgeContender:
    """A judge; its findings of alarm level are its alarms."""

    source = f"trimtab {trimtab.__version__}"

    def __init__(self, name: str, rules: RuleSet) -> None:
        self.name = name
        self._rules = rules

    def watch(self, run: Block, forks: Sequence[Fork] = ()) -> Alarms:
        """Say at which rows it raises an alarm."""
        judge = Judge(rules=self._rules)
        flags = np.zeros(len(run), dtype=np.bool_)
        tails: dict[int, BoolArray] = {}
        begin = 0
        for at in sorted(range(len(forks)), key=lambda at: forks[at].row):
            fork = forks[at]
            if fork.row > begin:
                flags[begin : fork.row] = _alarms(judge, run[begin : fork.row])
                begin = fork.row
            tails[at] = _alarms(copy.deepcopy(judge), fork.tail)
        flags[begin:] = _alarms(judge, run[begin:])
        return Alarms(run=flags, forks=[tails[at] for at in range(len(forks))])


def our_contenders() -> list[JudgeContender]:
    """The judge with the rules it has by default, and with each other set it knows."""
    default = Judge().rules
    others = [rules for rules in RULE_SETS.values() if rules is not default]
    return [
        JudgeContender("trimtab", default),
        *(JudgeContender(f"trimtab --rules {rules.name}", rules) for rules in others),
    ]


def _alarms(judge: Judge, block: Block) -> BoolArray:
    flags = np.zeros(len(block), dtype=np.bool_)
    for finding in judge.update(block).findings:
        if finding.severity is Severity.ALARM:
            flags[block.row_of(finding.tick)] = True
    return flags
