"""Who may be to blame: a data source that came with the trouble, or a rank that differs."""

import itertools
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trimtab.decide.situation import SettingDifference

MIN_BATCHES = 4
"""Batches since the onset before a source is suspected: one bad batch is not a bad source."""

MIN_RISE, MAX_BEFORE = 0.25, 0.25
"""How much more often a source comes since the onset, as a share of the batches, and how often at
most it came before: what was common and did no harm is not to blame. Chosen: a source of a usual
mix varies by less than this over 8 batches only if it is common."""

BY_CHANCE = 1e-3
"""The probability that this many odd steps name one rank by chance. Chosen: a relaunch costs a few
steps, and looking at ranks begins only where odd steps recur."""


def suspect_source(before: Sequence[str | None], since: Sequence[str | None]) -> str | None:
    """Return the source that comes since the onset and hardly came before; None if there is none.

    Both have the source of each batch, None where a batch does not name one.
    """
    if len(since) < MIN_BATCHES or not before:
        return None
    known = Counter(source for source in since if source is not None)
    earlier = Counter(before)

    def rise(source: str) -> float:
        return known[source] / len(since) - earlier[source] / len(before)

    most = max(known, key=rise, default=None)
    if most is None or earlier[most] > MAX_BEFORE * len(before) or rise(most) < MIN_RISE:
        return None
    return most


def suspect_rank(named: Sequence[int], world: int) -> int | None:
    """Return the rank that odd steps name more often than chance would; None if there is none.

    `named` has the rank that each odd step names: the one whose loss or gradient was largest.
    """
    if not named or world < 2:
        return None
    rank, times = Counter(named).most_common(1)[0]
    total, share = len(named), 1 / world
    at_least = sum(
        math.comb(total, k) * share**k * (1 - share) ** (total - k) for k in range(times, total + 1)
    )
    # Times the number of ranks: any of them could have been named by chance.
    return rank if world * at_least <= BY_CHANCE else None


Options = Sequence[Sequence[Mapping[str, Any]]]
"""For each optimizer, the options of each group."""

RATE = "lr"
JUMP = 1.5
"""A rate this many times that of the snapshot has jumped. Source: the steepest linear warm-up over
100 steps rises by less than this within 10 steps, once it has done 20."""
_NOT_SETTINGS = frozenset({RATE, "initial_lr", "fused", "foreach", "capturable", "differentiable"})
"""The learning rate apart; and how an update is computed, which trimtab changes itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingsView:
    """The settings at one moment."""

    step: int
    options: Options
    requires_grad: Mapping[str, bool]

    def values(self) -> dict[str, Any]:
        """Return every setting by name."""
        found: dict[str, Any] = {}
        for number, groups in enumerate(self.options):
            of = f"optimizer {number} " if len(self.options) > 1 else ""
            for place, group in enumerate(groups):
                for name, value in group.items():
                    found[f"{of}group {place} {name}"] = value
        found |= {f"requires_grad of {name}": flag for name, flag in self.requires_grad.items()}
        return found


def find_differences(
    healthy: Sequence[SettingsView],
    now: SettingsView,
    *,
    with_rate: bool,
    later: Sequence[SettingsView] = (),
    planned_changes: Iterable[int] = (),
) -> tuple[SettingDifference, ...]:
    """Return what differs now from the last of the healthy snapshots, which come in order of time.

    `later` are the snapshots after those, where the rate may have turned. `planned_changes` are the
    steps at which the user announced one.
    """
    if not healthy:
        return ()
    last = healthy[-1]
    before, values = last.values(), now.values()
    lowest = min((last, *later), key=_largest_rate) if with_rate else last
    before |= {name: rate for name, rate in lowest.values().items() if _option(name) == RATE}
    scheduled = _scheduled(healthy)
    is_announced = any(last.step <= step <= now.step for step in planned_changes)
    return tuple(
        SettingDifference(
            name=name,
            before=before[name],
            after=values[name],
            is_announced=is_announced,
            step=lowest.step if _option(name) == RATE else last.step,
        )
        for name in sorted(before.keys() & values.keys())
        if before[name] != values[name]
        and (
            _rate_counts(before[name], values[name], with_rate=with_rate)
            if _option(name) == RATE
            else _option(name) not in _NOT_SETTINGS and name not in scheduled
        )
    )


def plain_options(options: Options) -> Options:
    """Return the options with tensors of one element as numbers."""
    return [[{k: _plain(v) for k, v in group.items()} for group in groups] for groups in options]


def _plain(value: Any) -> Any:
    # Recognised by its methods, so that this module does not import torch.
    return value.item() if hasattr(value, "item") and hasattr(value, "numel") else value


def _option(name: str) -> str:
    return name.rpartition(" ")[2]


def _rate_counts(before: Any, after: Any, *, with_rate: bool) -> bool:
    """Return whether a change of the rate counts; schedules lower it as they like."""
    if not isinstance(before, int | float) or not isinstance(after, int | float):
        return False
    return bool(after > before and (with_rate or after > JUMP * before))


def _largest_rate(settings: SettingsView) -> float:
    rates = [group.get(RATE) for groups in settings.options for group in groups]
    return max((float(rate) for rate in rates if isinstance(rate, int | float)), default=0.0)


def _scheduled(healthy: Sequence[SettingsView]) -> set[str]:
    """Return the settings that changed between two healthy snapshots."""
    found = set()
    for one, other in itertools.pairwise(healthy):
        earlier, later = one.values(), other.values()
        found |= {name for name in earlier.keys() & later.keys() if earlier[name] != later[name]}
    return found
