"""nanochat: one line a step, with a loss that is smoothed.

    step 00100/05000 (2.00%) | loss: 4.512345 | lrm: 1.00 | dt: 412.10ms | tok/sec: 1,272,219 | ...

The loss is an exponential average (0.9, without bias) of the loss of the last micro-batch of rank
0: a spike is a tenth as high as it was, and one NaN stays for ever.
"""

import re

from trimtab.core.signals import LOSS, STEP_SECONDS, Quality
from trimtab.readers.aliases import Alias
from trimtab.readers.text.grammar import NUMBER, Grammar, Line
from trimtab.readers.text.layouts import Pairs
from trimtab.readers.text.parser import text_format

NANOCHAT = text_format(
    Grammar(
        name="nanochat",
        trainer="nanochat",
        sign=re.compile(r"step \d+(?:/\d+)? \([\d.]+%\) \| loss: "),
        lines=(
            Line(
                mark="step ",
                pattern=re.compile(r"step (?P<step>\d+)(?:/\d+)? \([\d.]+%\) \|"),
                fields=Pairs(r" ([^|:]{1,99}): ", NUMBER),
            ),
            Line(
                mark="Step ",
                pattern=re.compile(
                    rf"Step (?P<step>\d+) \| Validation bpb: (?P<validation_bpb>{NUMBER})"
                ),
            ),
        ),
        meanings=(
            Alias(
                signal=LOSS,
                name="loss",
                quality=Quality.SMOOTHED,
                remark="an exponential average over some ten steps of one rank",
            ),
            Alias(signal=STEP_SECONDS, name="dt", scale=0.001),
        ),
        grouped=frozenset({"tok/sec"}),
    )
)
"""The format."""
