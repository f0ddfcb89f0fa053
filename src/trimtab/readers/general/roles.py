"""What the columns of a log are, by their names and by how they behave.

A name is judged by its words (`words.toml`), in any spelling: `Train loss`, `train/loss_step` and
`avgTrainLoss` are one thing. Behaviour decides what a name leaves open: a counter is whole and
rises, a loss falls.
"""

import re
from enum import IntEnum
from functools import lru_cache

import numpy as np

from trimtab.core.block import FloatArray
from trimtab.core.signals import EVAL_LOSS, GRAD_NORM, LOSS, LOSS_SCALE
from trimtab.readers.aliases import alias_table
from trimtab.readers.aliases import words_of as words_of
from trimtab.readers.general.lines import BAR, COLUMN, FRACTION, INDEX, WORDS


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


EVALUATION = _words(WORDS["evaluation"])
TRAINING = _words(WORDS["training"])
_KINDS = {name: _words(text) for name, text in WORDS["kinds"].items()}
_LOSS = {name: _words(text) for name, text in WORDS["loss"].items()}
_COUNTER = {name: _words(text) for name, text in WORDS["counter"].items()}

_IS_LOSS = re.compile("loss(es)?$")

_LARGE_SCALE = 128.0
"""Loss scales begin at 2**16 in torch and Megatron and at 128 in old recipes with a fixed one."""


class Counter(IntEnum):
    """What a counter counts; the higher, the better as the step of a record."""

    NONE = 0
    SAMPLES = 1
    EPOCH = 3
    BATCH = 4
    STEP = 5
    GLOBAL = 6


def is_evaluation(name: str) -> bool:
    return bool(EVALUATION.intersection(words_of(name)))


def evaluated_counter(name: str) -> str | None:
    """Return the counter in a name that also says evaluation: `validate step`; None if neither."""
    words = words_of(name)
    rest = [word for word in words if word not in EVALUATION]
    if len(rest) == len(words) or not rest or counter_class(rest[-1]) < Counter.EPOCH:
        return None
    return rest[-1] if set(rest) <= _COUNTER["plain"] | _LOSS["names"] | {rest[-1]} else None


def is_evaluation_loss(name: str) -> bool:
    others = " ".join(word for word in words_of(name) if word not in EVALUATION)
    return is_evaluation(name) and loss_class(others) >= 2


def is_phase(name: str) -> bool:
    """Return whether a name only says what is being done: `train`, `valid`."""
    return bool(words_of(name)) and EVALUATION.union(TRAINING).issuperset(words_of(name))


def says(name: str, kind: str) -> bool:
    """Return whether a name has a word of a kind: smoothed, total, policy or critic."""
    return bool(_KINDS[kind].intersection(words_of(name)))


# The loss


@lru_cache(maxsize=20_000)
def loss_class(name: str) -> int:
    """Return how well a name fits the training loss: 0 not at all, 3 for `loss` itself."""
    found, joined = set(words_of(name)), "".join(words_of(name))
    if not found & _LOSS["names"] and not joined.endswith(("loss", "crossentropy")):
        return 0
    if found & _LOSS["never"] or ("entropy" in found and "cross" not in found):
        return 0
    if "cost" in found and found & _KINDS["spent"]:
        return 0  # the cost of a batch is time
    if words_of(name)[-2:] == ("loss", "value"):
        found.remove("value")
    rest = found - _LOSS["plain"] - _LOSS["names"] - {"entropy"}
    if any(not word.endswith("loss") and not word.isdigit() for word in rest):
        return 1
    return 3 if "total" in found or any(_IS_LOSS.search(word) for word in found) else 2


def may_be_part(name: str) -> bool:
    """Return whether a name that fits the loss is that of a part of it, if there are others."""
    found = set(words_of(name))
    return bool(found & _LOSS["part"]) and "total" not in found


def may_be_loss(name: str) -> bool:
    """Return whether a name is that of a loss if its values fall, as `train` beside `val`."""
    return words_of(name) in (("learn",), ("train",), ("training",), ("total",))


def may_be_error(name: str) -> bool:
    """Return whether a name is that of a loss if there is none and its values fall: `error`."""
    found = set(words_of(name))
    return "error" in found and found <= _LOSS["plain"] | {"error"}


def is_share(values: FloatArray, other: FloatArray) -> bool:
    """Return whether values are what another column lacks to 1 or 100: an error rate."""
    both = values + other
    return bool(np.allclose(both, 1, atol=0.01) or np.allclose(both, 100, atol=0.5))


def falls(values: FloatArray) -> bool:
    """Return whether values are positive and end clearly lower than they begin."""
    known = values[np.isfinite(values)]
    if len(known) < 5 or (known <= 0).any():
        return False
    third = len(known) // 3
    return bool(np.median(known[-third:]) < 0.98 * np.median(known[:third]))


def loss_preference(name: str) -> tuple[int, ...]:
    """Return the order among names that fit equally well; the highest is taken."""
    found = set(words_of(name))
    return (
        -bool(found & _KINDS["smoothed"] or "epoch" in found),
        "total" in found,
        "reduced" in found,
        bool(found & TRAINING),
        -len(found),
    )


def adds_up(values: FloatArray) -> bool:
    """Return whether values are a sum that grows, as a loss that is never divided by its count.

    It grows by about as much from record to record as it begins with; a loss that rises begins
    far above what it rises by.
    """
    known = values[np.isfinite(values)]
    moves = np.diff(known)
    starts = np.concatenate([[0], np.flatnonzero(moves < 0) + 1])
    grown = moves[moves >= 0]
    if len(known) < 6 or (known < 0).any() or len(starts) > 0.2 * len(known) or not grown.any():
        return False
    usual = float(np.median(grown))
    return bool(
        usual > 0
        and np.median(known[starts]) < 3 * usual
        and np.quantile(grown, 0.9) < 3 * np.quantile(grown, 0.1)
    )


# Counters


@lru_cache(maxsize=20_000)
def counter_class(name: str) -> Counter:
    """Return what a column of this name counts."""
    if name in (BAR, FRACTION, INDEX):
        return Counter.BATCH
    if name.startswith(COLUMN):
        return Counter.STEP
    words = words_of(name.split("[")[0] if name.endswith("]") else name)
    step = _COUNTER["step"]
    if "at" in words and _KINDS["saving"].issuperset(words[: words.index("at")]):
        words = words[words.index("at") + 1 :]  # checkpoint saved at step
    if (
        "/" in name
        and words[-1:]
        and words[-1] in step
        and words[0] in step | {"global", "current"}
    ):
        words = words[: len(words) // 2] or words  # global_step/max_steps
    found = set(words)
    if not words or found & _COUNTER["never"] or name.lower().endswith(("/s", "/sec")):
        return Counter.NONE
    if found & _KINDS["timesteps"] and found <= _KINDS["timesteps"] | _KINDS["running"]:
        # `NumTimesteps` may be those of this iteration only.
        return Counter.GLOBAL if found & {"total", "global"} else Counter.BATCH
    if found & _COUNTER["samples"]:
        return Counter.SAMPLES
    if found & step and not found - step - _COUNTER["plain"]:
        if "total" in found:
            return Counter.SAMPLES
        return Counter.GLOBAL if found & {"global", "num", "current"} else Counter.STEP
    for kind in (Counter.BATCH, Counter.EPOCH, Counter.STEP):
        names = _COUNTER[kind.name.lower()]
        if found & names and not found - names - _COUNTER["plain"]:
            return kind
        if words[-1] in names and len(words) <= 3 and not is_evaluation(name):
            return kind
    return Counter.NONE


def counter_preference(name: str) -> tuple[bool, ...]:
    """Return the order among counters of one kind; an iteration may be part of a step."""
    found = set(words_of(name))
    return "global" in found, bool(found & _KINDS["optimizer"]), not found & _KINDS["iterations"]


def may_count(name: str) -> bool:
    """Return whether a name that no list knows may be that of a counter."""
    found = set(words_of(name))
    return not found & (_COUNTER["never"] | _COUNTER["samples"] | EVALUATION | _KINDS["shares"])


def counts(values: FloatArray) -> bool:
    """Return whether values behave as a counter: whole, not negative, and rising."""
    known = values[np.isfinite(values)]
    if not len(known) or (known < 0).any() or (known != np.floor(known)).any():
        return False
    return len(known) < 3 or bool((np.diff(known) >= 0).mean() >= 0.5)


def rises(values: FloatArray) -> bool:
    """Return whether there are several values, and each is above the one before it."""
    return len(values) > 1 and bool((np.diff(values) > 0).all())


def is_even(values: FloatArray, *, restarts: bool = False) -> bool:
    """Return whether values count in steps of one size, but for one in ten.

    With `restarts` the count may also begin again, any number of times.
    """
    if len(values) < 5 or not counts(values):
        return False
    moves = np.diff(values)
    if restarts:
        moves = moves[values[1:] != values[0]]
    moves, numbers = np.unique(moves, return_counts=True)
    return bool(moves[np.argmax(numbers)] > 0 and numbers.max() >= 0.9 * numbers.sum())


def is_constant(values: FloatArray) -> bool:
    """Return whether there are several values, and all are the same."""
    return len(values) > 1 and bool((values == values[0]).all())


# Other signals


def step_seconds_scale(name: str, unit: str, values: FloatArray) -> float | None:
    """Return what makes a column seconds per step; None if it is no time of a step.

    A time counts only with its unit, and a clock that runs on is none.
    """
    found = set(words_of(name))
    per_step = "dt" in found or (found & _KINDS["times"] and found & _COUNTER["step"])
    if not (per_step and found <= _KINDS["step_time"]) and not (
        name in ("time", "took", "(ms)") and unit == "ms"
    ):
        return None
    unit = unit or next((word for word in ("ms", "s") if word in found), "")
    known = values[np.isfinite(values)]
    runs_on = len(known) > 2 and bool((np.diff(known) >= 0).mean() > 0.9) and known[0] != known[-1]
    return None if not unit or runs_on else {"ms": 0.001, "s": 1.0}[unit]


def signal_of(name: str) -> str | None:
    """Return the signal other than a loss that a name means by its words."""
    words = words_of(name)
    place = alias_table().by_words(words)
    if place is None:
        return {"norm": GRAD_NORM, "scale": LOSS_SCALE}.get("".join(words))
    signal = alias_table().worded[place].signal
    return None if signal in (LOSS, EVAL_LOSS) else signal


def is_loss_scale(values: FloatArray) -> bool:
    """Return whether values behave as a loss scale: powers of two that move, or are large."""
    known = values[np.isfinite(values)]
    if not len(known) or (known <= 0).any() or (np.frexp(known)[0] != 0.5).any():
        return False
    return bool(known.max() >= _LARGE_SCALE or not is_constant(known))


def is_known(name: str) -> bool:
    """Return whether a name may be that of a loss, a counter or a signal."""
    if loss_class(name) or counter_class(name) > Counter.NONE or signal_of(name):
        return True
    return is_evaluation(name) or may_be_loss(name) or may_be_error(name)
