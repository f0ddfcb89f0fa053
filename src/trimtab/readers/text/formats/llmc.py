"""llm.c: the console of train_gpt2.cu, train_gpt2.py and train_gpt2.c, and its main.log.

    step   12/19560 | loss 9.123456 (+0.12z)| norm 3.1234 (-0.40z)| lr 1.20e-05 | 812.55 ms | ...
    s:11 trl:9.1235 lr:0.000012 norm:3.12

The console counts steps from 1, main.log from 0. The norm is the one before clipping; `tok/s` is
an exponential average. A validation loss has no step on the console; it belongs to the next one.
"""

import re

from trimtab.core.signals import (
    EVAL_LOSS,
    GRAD_NORM,
    LOSS,
    STEP_SECONDS,
    TOKENS_PER_SECOND,
    Quality,
)
from trimtab.readers.aliases import Alias
from trimtab.readers.text.grammar import NUMBER, Grammar, Line, Place
from trimtab.readers.text.parser import text_format

# Numbers are padded: a NaN takes the room of the number that it is not.
_Z_SCORE = r"(?: \([^)]*z\))?"
_CONSOLE = (
    rf"step +(?P<step>\d+)/\d+ \| (?:train )?loss +(?P<loss>{NUMBER}){_Z_SCORE} ?"
    rf"\| norm +(?P<norm>{NUMBER}){_Z_SCORE} ?\| lr (?P<lr>{NUMBER}) "
    rf"\| \(?(?P<step_ms>{NUMBER}) ms \| (?:(?P<mfu>{NUMBER})% [^|]*MFU \| )?"
    rf"(?P<tok_s>{NUMBER}) tok/s"
)
_MAIN_LOG = (
    rf"s:(?P<step>\d+) (?:trl:(?P<trl>{NUMBER})(?: lr:(?P<lr>{NUMBER}) norm:(?P<norm>{NUMBER}))?"
    rf"|tel:(?P<tel>{NUMBER})|eval:(?P<hellaswag>{NUMBER}))"
)

LLMC = text_format(
    Grammar(
        name="llm.c",
        trainer="llm.c",
        sign=re.compile(
            r"step +\d+/\d+ \| (?:train )?loss +\S+ |s:\d+ (?:trl|tel):"
            r"|step \d+: train loss \S+ \(took "
        ),
        lines=(
            Line(mark="| norm ", pattern=re.compile(_CONSOLE)),
            Line(mark="s:", pattern=re.compile(_MAIN_LOG)),
            Line(
                mark=" (took ",
                pattern=re.compile(
                    rf"step (?P<step>\d+): train loss (?P<loss>{NUMBER}) "
                    rf"\(took (?P<step_ms>{NUMBER}) ms\)"
                ),
            ),
            Line(
                mark="val loss ",
                pattern=re.compile(rf"val loss (?P<val_loss>{NUMBER})"),
                place=Place.BELOW,
            ),
            Line(
                mark="skipping update due to ",
                pattern=re.compile("skipping update due to "),
                place=Place.BELOW,
                count="skipped updates",
            ),
        ),
        meanings=(
            Alias(signal=LOSS, name="trl"),
            Alias(signal=EVAL_LOSS, name="tel"),
            Alias(signal=GRAD_NORM, name="norm"),
            Alias(signal=STEP_SECONDS, name="step_ms", scale=0.001),
            Alias(signal=TOKENS_PER_SECOND, name="tok_s", quality=Quality.SMOOTHED),
        ),
    )
)
"""The format."""
