"""Text logs whose numbers are what their names say: a grammar is all that they need."""

import re
from collections.abc import Iterator

from trimtab.core.signals import (
    EVAL_LOSS,
    GRAD_NORM,
    LOSS,
    LR,
    STEP_SECONDS,
    TOKENS_PER_SECOND,
    Quality,
)
from trimtab.readers.aliases import Alias
from trimtab.readers.text.parser import NUMBER, Grammar, LinePlace, Pairs, TextLine, text_format

# torchtitan: one coloured line a log interval.
#
#     [titan] 2026-11-15 10:00:00,000 - root - INFO - step: 20  loss:  7.51027  grad_norm:  1.5926
#     memory: 42.10GiB(53.1%)  tps: 7,214  tflops: 318.66  mfu: 32.22%       (all in one line)
#
# Loss and gradient norm are those of the one step, over all ranks; the norm is the one that
# clip_grad_norm_ returns, before clipping. Checked against torchtitan 0.3.0.

_titan_fields = Pairs(r"(\w{1,99}): +", NUMBER)

TORCHTITAN = text_format(
    Grammar(
        name="torchtitan",
        trainer="torchtitan",
        sign=re.compile(r"step: +\d+  loss: +\S+  "),
        lines=(
            TextLine(
                mark="validate step: ",
                pattern=re.compile(r"validate step: +(?P<step>\d+)  "),
                fields=_titan_fields,
                prefix="validation_",
            ),
            TextLine(
                mark="step: ",
                pattern=re.compile(r"step: +(?P<step>\d+)  (?=loss: )"),
                fields=_titan_fields,
            ),
        ),
        meanings=(
            Alias(signal=EVAL_LOSS, name="validation_loss"),
            Alias(signal=TOKENS_PER_SECOND, name="tps", remark="per device, not over all ranks"),
        ),
        grouped=frozenset({"tps", "tflops", "validation_tps"}),
    )
)


# OLMo-core and OLMo: a line with the step, then one indented line per metric.
#
#     2026-11-15 10:00:00.000  host:0  olmo_core...:56  INFO  [step=10/5000,epoch=1,eta=2h]
#         train/CE loss=9.123
#         optim/total grad norm=1.2345
#
# Values of the one step, with four decimals at most: a learning rate over 0.0001 has one digit.
# Large ones come in groups (12,345) or with a letter (1.234B). Steps without metrics are printed
# too and say nothing.

_OLMO_METRIC = re.compile(rf"([^=]+)=({NUMBER})([BTPE]?)\s*$")
_OLMO_FACTORS = {"": 1.0, "B": 1e9, "T": 1e12, "P": 1e15, "E": 1e18}


def _olmo_metric(rest: str) -> Iterator[tuple[str, float]]:
    found = _OLMO_METRIC.match(rest)
    if found:
        name, number, letter = found.groups()
        yield name, float(number.replace(",", "")) * _OLMO_FACTORS[letter]


OLMO = text_format(
    Grammar(
        name="olmo",
        trainer="OLMo",
        sign=re.compile(r"\[step=\d+/[\d?]+,epoch=\d+"),
        lines=(
            TextLine(
                mark="[step=",
                pattern=re.compile(r"\[step=(?P<step>\d+)/[\d?]+,epoch="),
            ),
            TextLine(
                mark="=",
                pattern=re.compile(r"^(?:\[\w+\]:|\s*\d+:)? {4,5}(?=[\w/])"),
                fields=_olmo_metric,
                place=LinePlace.ABOVE,
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


# nanochat: one line a step, with a loss that is smoothed.
#
#     step 00100/05000 (2.00%) | loss: 4.512345 | lrm: 1.00 | dt: 412.10ms | tok/sec: 1,272,219
#
# The loss is an exponential average (0.9, without bias) of the loss of the last micro-batch of rank
# 0: a spike is a tenth as high as it was, and one NaN stays for ever.

NANOCHAT = text_format(
    Grammar(
        name="nanochat",
        trainer="nanochat",
        sign=re.compile(r"step \d+(?:/\d+)? \([\d.]+%\) \| loss: "),
        lines=(
            TextLine(
                mark="step ",
                pattern=re.compile(r"step (?P<step>\d+)(?:/\d+)? \([\d.]+%\) \|"),
                fields=Pairs(r" ([^|:]{1,99}): ", NUMBER),
            ),
            TextLine(
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


# llm.c: the console of train_gpt2.cu, train_gpt2.py and train_gpt2.c, and its main.log.
#
#     step   12/19560 | loss 9.123456 (+0.12z)| norm 3.1234 (-0.40z)| lr 1.20e-05 | 812.55 ms | ...
#     s:11 trl:9.1235 lr:0.000012 norm:3.12
#
# The console counts steps from 1, main.log from 0. The norm is the one before clipping; `tok/s` is
# an exponential average. A validation loss has no step on the console; it belongs to the next one.

# Numbers are padded: a NaN takes the room of the number that it is not.
_LLMC_Z_SCORE = r"(?: \([^)]*z\))?"
_LLMC_CONSOLE = (
    rf"step +(?P<step>\d+)/\d+ \| (?:train )?loss +(?P<loss>{NUMBER}){_LLMC_Z_SCORE} ?"
    rf"\| norm +(?P<norm>{NUMBER}){_LLMC_Z_SCORE} ?\| lr (?P<lr>{NUMBER}) "
    rf"\| \(?(?P<step_ms>{NUMBER}) ms \| (?:(?P<mfu>{NUMBER})% [^|]*MFU \| )?"
    rf"(?P<tok_s>{NUMBER}) tok/s"
)
_LLMC_MAIN_LOG = (
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
            TextLine(mark="| norm ", pattern=re.compile(_LLMC_CONSOLE)),
            TextLine(mark="s:", pattern=re.compile(_LLMC_MAIN_LOG)),
            TextLine(
                mark=" (took ",
                pattern=re.compile(
                    rf"step (?P<step>\d+): train loss (?P<loss>{NUMBER}) "
                    rf"\(took (?P<step_ms>{NUMBER}) ms\)"
                ),
            ),
            TextLine(
                mark="val loss ",
                pattern=re.compile(rf"val loss (?P<val_loss>{NUMBER})"),
                place=LinePlace.BELOW,
            ),
            TextLine(
                mark="skipping update due to ",
                pattern=re.compile("skipping update due to "),
                place=LinePlace.BELOW,
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


# nanoGPT and build-nanogpt.
#
#     iter 10: loss 3.1234, time 123.45ms, mfu 12.34%
#     step 250: train loss 2.4567, val loss 2.5678
#     step     3 | loss: 10.662148 | lr 3.3566e-06 | norm: 12.9317 | dt: 414.43ms | ...
#
# nanoGPT's loss is that of the last micro-batch of rank 0, far noisier than the mean; its `train
# loss` is an estimate over many batches, made with the weights of that step. build-nanogpt's loss
# is the mean over all, its norm the one before clipping.

_GPT_ITERATION = rf"iter (?P<step>\d+): loss (?P<iter_loss>{NUMBER}), time (?P<time>{NUMBER})ms"
_GPT_ESTIMATE = rf"train loss (?P<estimated_train_loss>{NUMBER}), val loss (?P<val_loss>{NUMBER})"

NANOGPT = text_format(
    Grammar(
        name="nanogpt",
        trainer="nanoGPT or build-nanogpt",
        sign=re.compile(
            r"iter \d+: loss \S+, time |step \d+: train loss \S+, val loss "
            r"|step +\d+ \| loss: \S+ \| lr "
        ),
        lines=(
            TextLine(
                mark="iter ",
                pattern=re.compile(rf"{_GPT_ITERATION}(?:, mfu (?P<mfu>{NUMBER})%)?"),
            ),
            TextLine(
                mark="train loss ", pattern=re.compile(rf"step (?P<step>\d+): {_GPT_ESTIMATE}")
            ),
            TextLine(
                mark="| loss: ",
                pattern=re.compile(r"step +(?P<step>\d+) \|"),
                fields=Pairs(r" ([^|: ]{1,99}):? ", NUMBER),
            ),
            TextLine(
                mark="validation loss: ",
                pattern=re.compile(rf"validation loss: (?P<validation_loss>{NUMBER})"),
                place=LinePlace.BELOW,
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
