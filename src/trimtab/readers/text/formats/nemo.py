"""NeMo: the progress printer of NeMo 2, and the recipes of NeMo Automodel.

    Training epoch 0, iteration 99/1000 | lr: 0.0003 | global_step: 99 | reduced_train_loss: 7.21
    step 12 | epoch 0 | loss 2.3170 | grad_norm 0.8125 | lr 1.00e-05 | mem 17.31 GiB | ...

The printer divides sums over its interval by its length: all its fields but `global_step` are
means, printed with four digits. `val_loss` is in every line until the next evaluation.
Automodel prints the values of the step.
"""

import re

from trimtab.core.signals import EVAL_LOSS, STEP_SECONDS, TOKENS_PER_SECOND
from trimtab.readers.aliases import Alias
from trimtab.readers.table import Table
from trimtab.readers.text.grammar import NUMBER, Grammar, Line
from trimtab.readers.text.layouts import Pairs
from trimtab.readers.text.parser import text_format
from trimtab.readers.text.windows import mark_window_means

_recipe_fields = Pairs(r"\| (\w{1,99}) ", NUMBER)


def finish(table: Table) -> None:
    """Tell the printer's means from values of one step."""
    mark_window_means(table, "reduced_train_loss", "train_step_timing in s", step="iteration")


NEMO = text_format(
    Grammar(
        name="nemo",
        trainer="NeMo",
        sign=re.compile(
            r"Training epoch \d+, iteration \d+/\d+ \| |step \d+ \| epoch \d+ \| \w+ \S+ \| "
        ),
        lines=(
            Line(
                mark="Training epoch ",
                pattern=re.compile(r"Training epoch \d+, iteration (?P<iteration>\d+)/\d+"),
                fields=Pairs(r"\| ([^|:]{1,99}): ", NUMBER),
            ),
            Line(
                mark="[val] ",
                pattern=re.compile(r"\[val\] .*?\bstep (?P<step>\d+) (?=\| epoch )"),
                fields=_recipe_fields,
                prefix="val_",
            ),
            Line(
                mark="step ",
                pattern=re.compile(r"step (?P<step>\d+) (?=\| epoch )"),
                fields=_recipe_fields,
            ),
        ),
        meanings=(
            Alias(signal=STEP_SECONDS, name="train_step_timing in s"),
            Alias(signal=EVAL_LOSS, name="val_loss"),
            Alias(signal=TOKENS_PER_SECOND, name="tps"),
        ),
        finish=finish,
    )
)
"""The format."""
