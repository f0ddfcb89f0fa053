"""BatchReport: what the batches around an incident look like, as values for every view."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trimtab.core.jsonable import to_number
from trimtab.explain.batches.token_counts import Band, TokenShare

Decode = Callable[[Sequence[int]], str]
"""The user's tokenizer: token ids to text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowReport:
    """One sequence of a batch."""

    data_position: int
    """Of its batch; negative if it is not known."""
    row: int
    """Its place in the batch, from 0."""
    reasons: tuple[str, ...]
    """Why it is unusual; empty if it is not."""
    rarity: float | None
    """Mean -log p of its tokens, p from the run before the incident."""
    repetition: float | None
    """The share of its 4-grams that occurred in it before."""
    loss: float | None
    """Its mean loss, if `record(token_loss=...)` gave it."""
    max_token_loss: float | None
    """The largest loss of one of its tokens."""
    max_loss_place: int | None
    """The place of that token in the sequence."""
    num_tokens: int
    token_ids: tuple[int, ...]
    """The first of its tokens."""
    text: str | None = None
    """The same tokens as text, if the user allows it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MixShift:
    """The tokens of many batches differ from those before."""

    step: int
    data_position: int
    """Where it begins."""
    num_batches: int
    """Batches from there on that were looked at."""
    divergence: float
    """Jensen-Shannon divergence of these batches from those before, in bits."""
    usual: float
    """The same by chance: of these batches in a random order."""
    more: tuple[TokenShare, ...]
    fewer: tuple[TokenShare, ...]
    bands: tuple[Band, ...]
    """These batches as a histogram over how frequent a token was before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchReport:
    """The batches around the onset of an incident, against the run before it."""

    onset_tick: int
    """Of the incident."""
    num_batches: int
    """Batches that were looked at."""
    num_run_tokens: int
    """Tokens of the run that they were compared with."""
    tick: int
    step: int
    data_position: int
    """The batch that this is about: the most unusual one, or that at the onset."""
    num_rows: int
    """Sequences in it, on the first rank."""
    num_unusual_rows: int
    unusual_positions: tuple[int, ...]
    """Data positions of all batches with unusual sequences."""
    usual: Mapping[str, float]
    """The median of each score over the sequences from before."""
    rows: tuple[RowReport, ...]
    """Its sequences, the most unusual first."""
    tokens: tuple[TokenShare, ...]
    """Tokens that its unusual sequences have too many of; of the whole batch if none is unusual."""
    bands: tuple[Band, ...]
    """The same sequences as a histogram over how frequent a token is in the run."""
    shift: MixShift | None

    @property
    def histogram(self) -> tuple[tuple[TokenShare, ...], tuple[Band, ...]]:
        """The tokens and the bands that a histogram shows: of the shift, if there is one."""
        if self.shift is None:
            return self.tokens, self.bands
        return (*self.shift.more, *self.shift.fewer), self.shift.bands

    @property
    def is_unusual(self) -> bool:
        """Whether anything stands out."""
        return bool(self.num_unusual_rows or self.shift)

    def decoded(self, decode: Decode) -> "BatchReport":
        """The same with its sequences and tokens as text."""
        rows = tuple(
            dataclasses.replace(row, text=str(decode(list(row.token_ids)))) for row in self.rows
        )
        shift = self.shift and dataclasses.replace(
            self.shift,
            more=_decoded(self.shift.more, decode),
            fewer=_decoded(self.shift.fewer, decode),
        )
        tokens = _decoded(self.tokens, decode)
        return dataclasses.replace(self, rows=rows, tokens=tokens, shift=shift)

    @classmethod
    def from_dict(cls, saved: Mapping[str, Any]) -> "BatchReport":
        """The report that was saved as JSON; raises KeyError, TypeError or ValueError if it is
        not one."""
        shift = saved["shift"]
        return cls(
            **{
                **_known(cls, saved),
                "unusual_positions": tuple(map(int, saved["unusual_positions"])),
                "usual": {str(name): float(value) for name, value in saved["usual"].items()},
                "rows": tuple(_row(part) for part in saved["rows"]),
                "tokens": _tokens(saved["tokens"]),
                "bands": _bands(saved["bands"]),
                "shift": None if shift is None else _shift(shift),
            }
        )


def _decoded(tokens: tuple[TokenShare, ...], decode: Decode) -> tuple[TokenShare, ...]:
    return tuple(dataclasses.replace(token, text=str(decode([token.id]))) for token in tokens)


def _row(saved: Mapping[str, Any]) -> RowReport:
    reasons, ids = tuple(map(str, saved["reasons"])), tuple(map(int, saved["token_ids"]))
    return RowReport(**{**_known(RowReport, saved), "reasons": reasons, "token_ids": ids})


def _shift(saved: Mapping[str, Any]) -> MixShift:
    more, fewer, bands = _tokens(saved["more"]), _tokens(saved["fewer"]), _bands(saved["bands"])
    return MixShift(**{**_known(MixShift, saved), "more": more, "fewer": fewer, "bands": bands})


def _tokens(saved: Any) -> tuple[TokenShare, ...]:
    return tuple(TokenShare(**_known(TokenShare, part)) for part in saved)


def _bands(saved: Any) -> tuple[Band, ...]:
    return tuple(Band(**_known(Band, part)) for part in saved)


def _known(cls: type[Any], saved: Mapping[str, Any]) -> dict[str, Any]:
    """The fields that this version knows; raises TypeError for a value of the wrong type."""
    return {f.name: _checked(f.type, saved[f.name]) for f in dataclasses.fields(cls)}


def _checked(kind: Any, value: Any) -> Any:
    if value is None and kind in (float | None, int | None, str | None):
        return None
    if kind in (float, float | None):
        value = to_number(value)  # NaN and the infinities were saved as text
    for plain, kinds in ((float, (float, float | None)), (int, (int, int | None))):
        if kind in kinds and not isinstance(value, plain):
            raise TypeError(f"expected {plain.__name__}, got {type(value).__name__}")
    if kind in (str, str | None) and not isinstance(value, str):
        raise TypeError(f"expected text, got {type(value).__name__}")
    return value
