"""RankOrders: what the first rank orders reaches all ranks, and what all of them must agree on.

A few whole numbers of each rank ride along with the gate's vote, and their maximum comes back:

    order, length    number and size of the first rank's latest order; 0 on all other ranks
    keep             the step before which a snapshot must stay, of the first rank
    slots, oldest    minus what fits into a rank's memory, so the least counts; 1: not known yet
    sum, minus_sum   checksum of weights and optimizer state: ranks with equal ones share snapshots
    attempt, minus_attempt    different attempts stop the run

Every rank reads them at the same meeting, `lag` meetings later, and acts at the same boundary.
"""

from collections.abc import Callable, Mapping

import torch

from trimtab.live.measure.local_gradients import LocalGradients
from trimtab.live.recover.order import Order, from_bytes, to_bytes

FIELDS = (
    *("order", "length", "keep", "slots", "oldest"),
    *("sum", "minus_sum", "attempt", "minus_attempt"),
)

_DIGITS = 20
"""Bits of a digit: numbers go to the host as float32, which is exact up to 24."""

NAMES = tuple(f"{field}:{part}" for field in FIELDS for part in ("high", "low"))
"""The names of the digits, as they reach the host."""

NOT_KNOWN = 1
"""For `slots` and `oldest`: larger than minus any number that is known."""


class RankOrders:
    """What this rank sends, and what the ranks have agreed on."""

    def __init__(
        self, device: torch.device, is_first: Callable[[], bool], local_gradients: LocalGradients
    ) -> None:
        self._device = device
        self.local_gradients = local_gradients
        """Measured while a rank is suspected; then its largest rides along as well."""
        self._is_first = is_first
        """Whether this is the rank that decides; ranks may be found only at the first update."""
        self._mine = dict.fromkeys(FIELDS, 0) | {"slots": NOT_KNOWN, "oldest": NOT_KNOWN}
        self._vector: torch.Tensor | None = None
        self._pending: list[tuple[int, Order]] = []
        """On the first rank: what has not been carried out, by number."""
        self._num_orders = 0
        self._seen: tuple[int, int] | None = None
        """Number and length of an order that is to be carried out."""
        self._done = 0
        self.agreed: dict[str, int] | None = None
        """What the last meeting that has arrived agreed on."""

    def set(self, **values: int) -> None:
        """Send these numbers from the next meeting on."""
        if any(self._mine[name] != value for name, value in values.items()):
            self._mine |= values
            self._vector = None

    def issue(self, order: Order) -> None:
        """Order something; only on the first rank."""
        self._num_orders += 1
        self._pending.append((self._num_orders, order))
        self.set(order=self._num_orders, length=len(self._text(self._num_orders)))

    def vector(self) -> torch.Tensor:
        """The numbers of this rank; made anew only when one of them has changed."""
        if self._vector is None:
            numbers = [self._mine[name] for name in FIELDS]
            self._vector = torch.tensor(numbers, dtype=torch.int64, device=self._device)
        return self._vector

    def to_send(self, rank: int) -> torch.Tensor:
        """What rides along with this rank's vote; as long on all ranks."""
        local = self.local_gradients
        return torch.cat((self.vector(), local.pop(rank))) if local.is_armed else self.vector()

    def read(self, values: Mapping[str, float]) -> None:
        """What the ranks have agreed on has reached the host."""
        digits = [int(values[name]) for name in NAMES]
        numbers = [
            (high << _DIGITS) + low for high, low in zip(digits[::2], digits[1::2], strict=True)
        ]
        self.agreed = dict(zip(FIELDS, numbers, strict=True))
        if self.agreed["order"] > self._done:
            self._seen = (self.agreed["order"], self.agreed["length"])

    @property
    def problem(self) -> str | None:
        """Why the ranks cannot go on together; None if they can."""
        agreed = self.agreed
        if agreed is None or agreed["attempt"] == -agreed["minus_attempt"]:
            return None
        return (
            f"ranks are in different attempts ({-agreed['minus_attempt']} and {agreed['attempt']}):"
            " some have been rolled back and some have not, so their weights are not of the same "
            "step; restart from the last checkpoint"
        )

    def pop(self) -> tuple[int, int] | None:
        """Number and length of an order that all ranks carry out at this boundary."""
        seen, self._seen = self._seen, None
        if seen is not None:
            self._done = seen[0]
        return seen

    def exchange(self, number: int, length: int, group: object, first_rank: int) -> list[Order]:
        """The orders up to a number, from the first rank; a collective."""
        text = torch.zeros(length, dtype=torch.uint8, device=self._device)
        if self._is_first():
            # Shorter than announced where the first of several orders was carried out meanwhile.
            mine = torch.frombuffer(bytearray(self._text(number)), dtype=torch.uint8)
            text[: len(mine)].copy_(mine)
        torch.distributed.broadcast(text, src=first_rank, group=group)  # type: ignore[arg-type]
        self._pending = [(at, order) for at, order in self._pending if at > number]
        if not self._pending:
            self.set(order=0, length=0)
        return from_bytes(bytes(text.tolist()).rstrip(b"\0"))

    def forget(self) -> None:
        """The run has gone back: orders that were on their way were about what is no more."""
        if self._seen is not None:
            self._done = max(self._done, self._seen[0])
        self._seen = None
        self._pending.clear()
        self.set(order=0, length=0)

    def _text(self, number: int) -> bytes:
        return to_bytes([order for at, order in self._pending if at <= number])


def to_digits(numbers: torch.Tensor) -> torch.Tensor:
    """Whole numbers as digits that float32 holds exactly, high before low."""
    high, low = numbers >> _DIGITS, numbers & ((1 << _DIGITS) - 1)
    return torch.stack((high, low), dim=1).flatten()
