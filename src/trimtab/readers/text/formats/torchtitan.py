"""torchtitan: one coloured line a log interval.

    [titan] 2026-11-15 10:00:00,000 - root - INFO - step: 20  loss:  7.51027  grad_norm:  1.5926
    memory: 42.10GiB(53.1%)  tps: 7,214  tflops: 318.66  mfu: 32.22%       (all in one line)

Loss and gradient norm are those of the one step, over all ranks; the norm is the one that
clip_grad_norm_ returns, before clipping. Checked against torchtitan 0.3.0.
"""

import re

from trimtab.core.signals import EVAL_LOSS, TOKENS_PER_SECOND
from trimtab.readers.aliases import Alias
from trimtab.readers.text.grammar import NUMBER, Grammar, Line
from trimtab.readers.text.layouts import Pairs
from trimtab.readers.text.parser import text_format

_fields = Pairs(r"(\w{1,99}): +", NUMBER)

TORCHTITAN = text_format(
    Grammar(
        name="torchtitan",
        trainer="torchtitan",
        sign=re.compile(r"step: +\d+  loss: +\S+  "),
        lines=(
            Line(
                mark="validate step: ",
                pattern=re.compile(r"validate step: +(?P<step>\d+)  "),
                fields=_fields,
                prefix="validation_",
            ),
            Line(
                mark="step: ",
                pattern=re.compile(r"step: +(?P<step>\d+)  (?=loss: )"),
                fields=_fields,
            ),
        ),
        meanings=(
            Alias(signal=EVAL_LOSS, name="validation_loss"),
            Alias(signal=TOKENS_PER_SECOND, name="tps", remark="per device, not over all ranks"),
        ),
        grouped=frozenset({"tps", "tflops", "validation_tps"}),
    )
)
"""The format."""
