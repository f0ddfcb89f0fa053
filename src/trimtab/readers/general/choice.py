"""Which lines of a log are its training records, and which of their columns are step and loss.

Names decide first, behaviour second. Where two readings are equally plausible, none is chosen:
`Unclear` says what would decide.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from trimtab.core.block import BoolArray, FloatArray, IntArray
from trimtab.readers.cells import quoted_names
from trimtab.readers.general import roles
from trimtab.readers.general.lines import BAR, FRACTION, INDEX, spare_words
from trimtab.readers.general.roles import Counter
from trimtab.readers.general.shapes import Shape

Columns = dict[str, tuple[FloatArray, BoolArray]]
"""Name to values, and to which of the rows have one."""

COMMON = 0.6
"""Share of the records that have to have a counter for it to be their step."""

_FEW_LINES = 2
"""Lines up to which two shapes are as long as each other by chance."""

_SENTENCE_WORDS = 6
"""Words of a line that name none of its numbers, if they are most of its words, that make it a
sentence. Source: the records of 104 console logs have up to 4, half of the prose 7 and more."""

_DIVERGENCES = (("kl",), ("kl", "loss"), ("kld",))

_SUMMARY_SHARE = 0.1
"""A few lines with a loss among ten times as many with parts of one sum the run up."""


class Unclear(Exception):
    """The log has no reading that is better than all others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The training records of a log."""

    loss: str
    counter: str | None
    """None if no column of these lines counts them."""
    main: Shape
    shapes: tuple[Shape, ...]
    """All that hold records, the main one included."""


@dataclass(frozen=True, slots=True)
class _Candidate:
    """A column that may be the loss."""

    shape: Shape
    loss: str
    fit: int
    """How well its name fits; the best is 4."""
    counter: Counter

    @property
    def num_lines(self) -> int:
        return len(self.shape.lines)


def choose(shapes: Sequence[Shape], *, loss: str | None, step: str | None) -> Choice:
    """Return the records of a log; raises Unclear if there are none, or if they are ambiguous.

    `loss` and `step` are names in the log that are known to be these.
    """
    candidates = _candidates(shapes, loss, step) or _errors(shapes, step) or _unnamed(shapes, step)
    if not candidates:
        raise Unclear("no number in it is called a loss")
    best = _best(candidates)
    if loss is None and roles.adds_up(best.shape.column(best.loss)):
        raise Unclear(
            f"{quoted_names([best.loss])} adds up from record to record: it is not the loss of each"
        )
    parts = [name for name in best.shape.names if roles.words_of(name) in _DIVERGENCES]
    if loss is None and parts and roles.may_be_part(best.loss):
        raise Unclear(
            f"{quoted_names([best.loss, *parts])} may be parts of a loss that is not printed"
        )
    if best.shape.grouped.get(best.loss):
        raise Unclear(
            f"the commas in {quoted_names([best.loss])} may be decimal ones or stand between "
            f"thousands; write the numbers with points"
        )
    # A shape of a few lines, as a record with an evaluation in it, cannot be seen to fall.
    named = [
        shape
        for shape in shapes
        if roles.may_be_loss(best.loss) and best.loss in shape.names and not is_evaluation(shape)
    ]
    rivals = [
        shape
        for shape in named or [one.shape for one in candidates if one.loss == best.loss]
        if shape.is_table == best.shape.is_table
    ]
    counter = find_counter(rivals, step) or find_counter([best.shape], step)
    counted = [shape for shape in rivals if counter is None or counter in shape.names]
    chosen = [
        shape
        for shape in counted
        if shape is best.shape or not _is_summary(shape, best.shape, counter)
    ]
    is_short = sum(len(shape.lines) for shape in chosen) <= _FEW_LINES
    if loss is None and is_short and all(_is_sentence(shape) for shape in chosen):
        raise Unclear("it is not a log: what it says about a loss is a sentence")
    if loss is None:
        _refuse_closing(shapes, chosen, best.loss)
    return Choice(loss=best.loss, counter=counter, main=best.shape, shapes=tuple(chosen))


def _refuse_closing(shapes: Sequence[Shape], chosen: Sequence[Shape], loss: str) -> None:
    """Raise Unclear if the only record closes a run whose records have no loss, or is no record."""
    lines = [line for shape in chosen for line in shape.lines]
    if len(lines) > 1:
        return
    if chosen[0].names == (loss,) and not chosen[0].column(loss).any():
        raise Unclear(f"its only {quoted_names([loss])} is 0, as of a template")
    for shape in shapes:
        before = [line for line in shape.lines if line < lines[0]]
        counter = find_counter([shape], None) if len(before) > _FEW_LINES else None
        if counter not in (None, BAR, FRACTION, INDEX):
            raise Unclear(
                f"only its last line has a loss, {quoted_names([loss])}, and the {len(before)} "
                f"lines before it that count {quoted_names([str(counter)])} have none"
            )


def is_evaluation(shape: Shape) -> bool:
    """Return whether the words around the numbers say that an evaluation printed them."""
    return bool(shape.words & roles.EVALUATION) and not shape.words & {"train", "training", "trn"}


def find_counter(shapes: Sequence[Shape], step: str | None) -> str | None:
    """Return the best counter that most lines of these shapes have."""
    if step is not None:
        return step if any(step in shape.names for shape in shapes) else None
    _, _, columns = stack(sorted(shapes, key=lambda shape: shape.lines[0]))
    counters: dict[str, FloatArray] = {}
    for name, (values, present) in columns.items():
        named = roles.counter_class(name) >= Counter.EPOCH and present.mean() >= COMMON
        if named and roles.counts(values[present]):
            counters[name] = values[present]
    moving = {name for name, values in counters.items() if not roles.is_constant(values)}
    epochs = [name for name in counters if roles.counter_class(name) == Counter.EPOCH]
    epoch = next((n for n in epochs if n in moving and roles.rises(counters[n])), None)
    if epoch is not None:
        # A step that never changes, printed once an epoch, is the length of the epochs.
        moving |= {
            name
            for name, values in counters.items()
            if roles.counter_class(name) >= Counter.STEP and values[0] > 1
        }
        if FRACTION in moving and not _in_step(counters[FRACTION], counters[epoch]):
            moving.remove(FRACTION)  # a share, as `(700/1000)` of the answers
    order = {
        name: (roles.counter_class(name), len(np.unique(counters[name])))
        for name in counters
        if name in moving
    }
    best = [name for name in order if order[name] == max(order.values())]
    if best:
        chosen = max(best, key=roles.counter_preference)
        return max([chosen, *order], key=lambda name: _covers(columns, name, chosen))
    # Whatever it is called, a number that rises by a constant counts, if only one does.
    even = [
        name
        for name, (values, there) in columns.items()
        if there.all() and roles.may_count(name) and roles.is_even(values)
    ]
    return even[0] if len(even) == 1 else None


def _in_step(counts: FloatArray, epochs: FloatArray) -> bool:
    """Return whether a count rises by as much in each epoch as it has before the first one."""
    moves = np.diff(counts)
    return bool((moves == moves[0]).all() and abs(counts[0] / moves[0] - epochs[0]) <= 1)


def _covers(columns: Columns, name: str, other: str) -> int:
    """Return how many rows have a counter that says the same as another one; -1 if it does not."""
    (values, there), (others, known) = columns[name], columns[other]
    both = there & known
    return int(there.sum()) if there[known].all() and (values == others)[both].all() else -1


def stack(shapes: Sequence[Shape]) -> tuple[IntArray, IntArray, Columns]:
    """Return the lines, ranks and columns of several shapes, one below the other."""
    total = sum(len(shape.lines) for shape in shapes)
    columns: Columns = {}
    start = 0
    for shape in shapes:
        end = start + len(shape.lines)
        for name in shape.names:
            if name not in columns:
                columns[name] = (np.full(total, np.nan), np.zeros(total, dtype=np.bool_))
            values, present = columns[name]
            values[start:end], present[start:end] = shape.column(name), shape.present(name)
        start = end
    lines = np.concatenate([shape.line_numbers for shape in shapes])
    ranks = np.concatenate([np.array(shape.ranks, dtype=np.int64) for shape in shapes])
    return lines, ranks, columns


def _candidates(shapes: Sequence[Shape], loss: str | None, step: str | None) -> list[_Candidate]:
    found = []
    for shape in shapes:
        for name in shape.names:
            fit = _fit(shape, name) if loss is None else 4 * (name == loss)
            if fit:
                counter = find_counter([shape], step)
                kind = roles.counter_class(counter) if counter else Counter.NONE
                if kind == Counter.EPOCH and BAR in shape.names:
                    kind = Counter.NONE  # only the last drawing of each bar
                found.append(_Candidate(shape, name, fit, kind))
    return found


def _errors(shapes: Sequence[Shape], step: str | None) -> list[_Candidate]:
    """Return what is called an error and falls."""
    return [
        _Candidate(shape, name, 1, Counter.NONE)
        for shape in shapes
        if not is_evaluation(shape)
        for name in shape.names
        if roles.may_be_error(name) and roles.falls(shape.column(name))
        if not any(roles.is_share(shape.column(name), shape.column(o)) for o in shape.names)
    ]


def _fit(shape: Shape, name: str) -> int:
    if is_evaluation(shape) or name in shape.units:
        return 0  # what has a unit of time is no loss
    if "best" in shape.words and not any(map(roles.counter_class, shape.names)):
        return 0  # Saved best (loss: 2.5)
    others = [other for other in shape.names if other != name]
    if roles.may_be_part(name) and any(roles.loss_class(other) == 1 for other in others):
        return min(roles.loss_class(name), 1)
    if f"{name}[1]" in others or name.rpartition("[")[0] in others:
        return min(roles.loss_class(name), 1)  # a list of losses
    if roles.may_be_loss(name) and roles.falls(shape.column(name)):
        return 2
    return roles.loss_class(name)


def _unnamed(shapes: Sequence[Shape], step: str | None) -> list[_Candidate]:
    """Return the loss of a table without names: a perplexity beside it gives it away."""
    tables = [shape for shape in shapes if shape.is_unnamed and len(shape.lines) >= 5]
    longest = max(tables, key=lambda shape: len(shape.lines), default=None)
    counter = find_counter([longest], step) if longest else None
    if longest is None or counter is None:
        return []
    columns = {name: longest.column(name) for name in longest.names if name != counter}
    falling = [name for name, values in columns.items() if roles.falls(values)]
    for name in falling:
        if any(_is_exponential(other, columns[name]) for other in columns.values()):
            return [_Candidate(longest, name, 3, Counter.STEP)]
    if len(columns) == 1 and falling:
        return [_Candidate(longest, falling[0], 3, Counter.STEP)]
    if falling:
        raise Unclear(
            f"its columns have no names, and any of {quoted_names(falling)} may be the loss"
        )
    return []


def _is_exponential(perplexity: FloatArray, loss: FloatArray) -> bool:
    with np.errstate(all="ignore"):
        return bool(np.median(np.abs(np.log(perplexity) - loss)) < 0.05)


def _best(candidates: Sequence[_Candidate]) -> _Candidate:
    fit = max(one.fit for one in candidates)
    fitting = [one for one in candidates if one.fit == fit]
    most = max(one.num_lines for one in fitting)
    if most <= _FEW_LINES and most < _SUMMARY_SHARE * max(one.num_lines for one in candidates):
        fitting = [one for one in candidates if one.num_lines > most]
        fit, most = 1, max(one.num_lines for one in fitting)
    frequent = [one for one in fitting if one.num_lines > most / 3]
    # Any count of steps or batches will do; an epoch is a last resort.
    counted = max(min(one.counter, Counter.BATCH) for one in frequent)
    usable = [one for one in frequent if min(one.counter, Counter.BATCH) == counted]
    alone = [one for one in fitting if len(set(one.shape.ranks)) < 2]
    means = [one for one in alone if roles.says(one.loss, "smoothed")]
    if means and any(len(set(one.shape.ranks)) > 1 for one in usable):
        usable = means  # each rank prints its own loss, and one of them the mean
    longest = max(usable, key=lambda one: one.num_lines).shape
    if fit == 1:
        return _only_one([one for one in usable if one.num_lines >= 0.8 * len(longest.lines)])
    rivals = [
        one
        for one in usable
        if one.shape is longest or one.num_lines == len(longest.lines) > _FEW_LINES
    ]
    return _preferred(rivals)


def _preferred(rivals: Sequence[_Candidate]) -> _Candidate:
    """Return the loss among columns that are each called the loss."""
    best = max(rivals, key=lambda one: roles.loss_preference(one.loss))
    preference = roles.loss_preference(best.loss)
    for one in rivals:
        if roles.loss_preference(one.loss) == preference and not _agree(one, best):
            raise Unclear(f"both {quoted_names([best.loss, one.loss])} may be the loss")
    return best


def _agree(one: _Candidate, other: _Candidate) -> bool:
    """Return whether two columns hold the same numbers, but for their rounding."""
    return one.loss == other.loss or (
        one.num_lines == other.num_lines
        and np.allclose(
            one.shape.column(one.loss), other.shape.column(other.loss), rtol=0.01, equal_nan=True
        )
    )


def _only_one(rivals: Sequence[_Candidate]) -> _Candidate:
    """Return the loss among columns that are each called some loss."""
    by_name = {one.loss: one for one in rivals}
    lone = rivals[0].loss if len(by_name) == 1 else ""
    if roles.says(lone, "discriminator") and not any(map(str.isdigit, lone)):  # loss_3d
        raise Unclear(f"{quoted_names([lone])} is the loss of one of two networks")
    total = _total(list(by_name.values()))
    # A critic is a model of its own, beside the actor; the loss of values is part of another.
    actors = [one for one in by_name.values() if not _is_of_critic(one)]
    policy = actors if all(roles.says(one.loss, "policy") for one in actors) else []
    called_total = [one for one in by_name.values() if roles.says(one.loss, "total")]
    for found in ([total] if total else [], list(by_name.values()), called_total, policy):
        if len(found) == 1:
            return found[0]
    raise Unclear(
        f"any of {quoted_names(list(by_name))} may be the loss, and none is the sum of the others"
    )


def _is_of_critic(one: _Candidate) -> bool:
    """Return whether a loss is a critic's, or of something that is not used and always 0."""
    unused = not one.shape.column(one.loss).any() and not roles.says(one.loss, "policy")
    return unused or roles.says(one.loss, "critic")


def _total(rivals: Sequence[_Candidate]) -> _Candidate | None:
    """Return the column that is the sum of the others, if one is."""
    if len(rivals) < 3 or len({id(one.shape) for one in rivals}) > 1:
        return None
    matrix = np.stack([one.shape.column(one.loss) for one in rivals], axis=1)
    if not np.isfinite(matrix).all():
        return None
    others = matrix.sum(axis=1, keepdims=True) - matrix
    sums = np.isclose(others, matrix, rtol=0.01, atol=1e-3 * len(rivals)).all(axis=0)
    return rivals[int(np.argmax(sums))] if sums.any() else None


def _is_sentence(shape: Shape) -> bool:
    """Return whether a line with a number is prose, as in a README, not a record."""
    words = 0 if shape.is_table else len(spare_words(shape.sample))
    spare = words - sum(len(roles.words_of(name)) for name in shape.names)
    return spare >= _SENTENCE_WORDS and 2 * spare > words


def _is_summary(shape: Shape, main: Shape, counter: str | None) -> bool:
    """Return whether a shape is printed once an epoch, after records of it in the main shape."""
    shared = [name for name in shape.names if name in main.names and name != counter]
    epoch = next((name for name in shared if roles.counter_class(name) == Counter.EPOCH), None)
    if epoch is None or len(shape.lines) > 0.5 * len(main.lines):
        return False
    own, its = shape.column(epoch), main.column(epoch)
    after_several = [
        np.count_nonzero((its == number) & (main.line_numbers < line)) > 1
        for number, line in zip(own, shape.lines, strict=True)
    ]
    return bool((np.diff(own) > 0).all()) and all(after_several)
