"""nanoGPT and build-nanogpt.

    iter 10: loss 3.1234, time 123.45ms, mfu 12.34%
    step 250: train loss 2.4567, val loss 2.5678
    step     3 | loss: 10.662148 | lr 3.3566e-06 | norm: 12.9317 | dt: 414.43ms | tok/sec: 1265067.9

nanoGPT's loss is that of the last micro-batch of rank 0, far noisier than the mean; its `train
loss` is an estimate over many batches, made with the weights of that step. build-nanogpt's loss is
the mean over all, its norm the one before clipping.
"""

import re

from trimtab.core.signals import EVAL_LOSS, GRAD_NORM, LOSS, STEP_SECONDS
from trimtab.readers.aliases import Alias
from trimtab.readers.text.grammar import NUMBER, Grammar, Line, Place
from trimtab.readers.text.layouts import Pairs
from trimtab.readers.text.parser import text_format

_ITERATION = rf"iter (?P<step>\d+): loss (?P<iter_loss>{NUMBER}), time (?P<time>{NUMBER})ms"
_ESTIMATE = rf"train loss (?P<estimated_train_loss>{NUMBER}), val loss (?P<val_loss>{NUMBER})"

NANOGPT = text_format(
    Grammar(
        name="nanogpt",
        trainer="nanoGPT or build-nanogpt",
        sign=re.compile(
            r"iter \d+: loss \S+, time |step \d+: train loss \S+, val loss "
            r"|step +\d+ \| loss: \S+ \| lr "
        ),
        lines=(
            Line(
                mark="iter ",
                pattern=re.compile(rf"{_ITERATION}(?:, mfu (?P<mfu>{NUMBER})%)?"),
            ),
            Line(mark="train loss ", pattern=re.compile(rf"step (?P<step>\d+): {_ESTIMATE}")),
            Line(
                mark="| loss: ",
                pattern=re.compile(r"step +(?P<step>\d+) \|"),
                fields=Pairs(r" ([^|: ]{1,99}):? ", NUMBER),
            ),
            Line(
                mark="validation loss: ",
                pattern=re.compile(rf"validation loss: (?P<validation_loss>{NUMBER})"),
                place=Place.BELOW,
            ),
        ),
        meanings=(
            Alias(
                signal=LOSS,
                name="iter_loss",
                remark="the last micro-batch of one rank, noisier than the mean",
            ),
            Alias(signal=EVAL_LOSS, name="val_loss"),
            Alias(signal=GRAD_NORM, name="norm"),
            Alias(signal=STEP_SECONDS, name="time", scale=0.001),
            Alias(signal=STEP_SECONDS, name="dt", scale=0.001),
        ),
    )
)
"""The format."""
