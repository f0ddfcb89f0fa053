"""OLMo-core and OLMo: a line with the step, then one indented line per metric.

    2026-11-15 10:00:00.000	host:0	olmo_core.train...:56	INFO	[step=10/5000,epoch=1,eta=2h]
        train/CE loss=9.123
        optim/total grad norm=1.2345

Values of the one step, with four decimals at most: a learning rate over 0.0001 has one digit.
Large ones come in groups (12,345) or with a letter (1.234B). Steps without metrics are printed too
and say nothing.
"""

import re
from collections.abc import Iterator

from trimtab.core.signals import GRAD_NORM, LOSS, LR, TOKENS_PER_SECOND
from trimtab.readers.aliases import Alias
from trimtab.readers.text.grammar import NUMBER, Grammar, Line, Place
from trimtab.readers.text.parser import text_format

_METRIC = re.compile(rf"([^=]+)=({NUMBER})([BTPE]?)\s*$")
_FACTORS = {"": 1.0, "B": 1e9, "T": 1e12, "P": 1e15, "E": 1e18}


def _metric(rest: str) -> Iterator[tuple[str, float]]:
    found = _METRIC.match(rest)
    if found:
        name, number, letter = found.groups()
        yield name, float(number.replace(",", "")) * _FACTORS[letter]


OLMO = text_format(
    Grammar(
        name="olmo",
        trainer="OLMo",
        sign=re.compile(r"\[step=\d+/[\d?]+,epoch=\d+"),
        lines=(
            Line(
                mark="[step=",
                pattern=re.compile(r"\[step=(?P<step>\d+)/[\d?]+,epoch="),
            ),
            Line(
                mark="=",
                pattern=re.compile(r"^(?:\[\w+\]:|\s*\d+:)? {4,5}(?=[\w/])"),
                fields=_metric,
                place=Place.ABOVE,
            ),
        ),
        meanings=(
            Alias(signal=LR, name="optim/LR (group 0)", remark="it has four decimals at most"),
            Alias(signal=LOSS, name="train/CrossEntropyLoss"),
            Alias(signal=GRAD_NORM, name="optim/total_grad_norm"),
            Alias(
                signal=TOKENS_PER_SECOND,
                name="throughput/device/tokens_per_second",
                remark="per device, not over all ranks",
            ),
        ),
    )
)
"""The format."""
