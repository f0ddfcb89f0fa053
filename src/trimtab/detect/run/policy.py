"""PolicySignals: reward, KL, entropy, length and the other signals of reinforcement learning.

    the last 4, and the last 12 values --> against the 48 before them --> z and ratio --> finding

Every signal is compared with its own recent past. A finding needs a change that the noise of this
run does not explain and that is a large share of the level. A change that lasts becomes the new
normal. Where a policy simply gets
better its signals drift slowly, and the 48 values before drift with them.

Judged only in runs that record a reward, advantages or a clip fraction.
"""

import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, islice
from statistics import pstdev
from typing import Any

import numpy as np

from trimtab.core import signals
from trimtab.core.block import Block, IntArray, Record
from trimtab.core.detector import Detector, KnownChange
from trimtab.core.findings import Finding, Severity, Symptom
from trimtab.core.robust import jump_sigma, median, sigma_around
from trimtab.core.state import Stateful, StatefulDict

SHORT, LONG, REFERENCE, MIN_REFERENCE = 4, 12, 48, 24
"""Values whose mean is compared, those before them that say what is usual, and how many of these
are needed. Chosen: logs of such runs have some hundred records, and their rewards are noisy means
of some dozen responses; a collapse takes 5 to 50 steps in public threads."""

MIN_Z = {SHORT: 8.0, LONG: 7.0}
"""Standard errors of a mean that a change must exceed. Chosen: two clean runs of `trimtab lab rl`
reach 4.2 and 7.7 (an entropy that falls as the policy learns; there the factor decides)."""


@dataclass(frozen=True, slots=True)
class _Rule:
    """A change of one signal that is a finding."""

    symptom: Symptom
    sign: int
    """1 for a rise, -1 for a fall."""
    factor: float
    """The multiple of the usual level that it must reach."""
    least: float = 0.0
    """The least change in the unit of the signal."""
    severity: Severity = Severity.ALARM
    is_of_peak: bool = False
    """Whether the level is the highest value before: for what grows from 0 by itself."""


RULES: dict[str, tuple[_Rule, ...]] = {
    # A quarter is lost: half of it would be too late to act.
    signals.REWARD: (_Rule(Symptom.REWARD_FELL, -1, 0.75, 0.02),),
    # A KL grows from 0 by itself; the explosions of public threads by up to 1,000. Chosen: under
    # 0.01 nats it says nothing.
    signals.KL: (_Rule(Symptom.KL_JUMP, 1, 2.0, 0.01, is_of_peak=True),),
    signals.ENTROPY: (
        _Rule(Symptom.ENTROPY_FELL, -1, 0.5, 0.05),
        _Rule(Symptom.ENTROPY_ROSE, 1, 1.4, 0.1),
    ),
    # Policies that learn to reason write more, and episodes of games last longer: no fault alone.
    signals.RESPONSE_LENGTH: (
        _Rule(Symptom.LENGTH_ROSE, 1, 1.3, severity=Severity.WARN),
        _Rule(Symptom.LENGTH_FELL, -1, 0.75, severity=Severity.WARN),
    ),
    signals.TRUNCATED_SHARE: (_Rule(Symptom.TRUNCATION, 1, 2.0, 0.2),),
    # Chosen: above what the rounding of two engines may differ by.
    signals.LOGPROB_GAP: (_Rule(Symptom.ROLLOUT_GAP, 1, 3.0, 0.05),),
    signals.CLIP_FRACTION: (_Rule(Symptom.ROLLOUT_GAP, 1, 3.0, 0.1),),
    signals.RATIO: (
        _Rule(Symptom.ROLLOUT_GAP, 1, 1.2, 0.2),
        _Rule(Symptom.ROLLOUT_GAP, -1, 0.8, 0.2),
    ),
    signals.ADVANTAGE_STD: (_Rule(Symptom.ADVANTAGES_JUMPED, 1, 3.0, is_of_peak=True),),
    signals.GRAD_NORM: (_Rule(Symptom.GRADIENT_DIED, -1, 0.01),),
    # From 1, the best, to 0: no better than the mean of the returns.
    signals.EXPLAINED_VARIANCE: (_Rule(Symptom.VALUE_USELESS, -1, 0.5, 0.3),),
}
"""By signal. The factors are chosen; they were looked at on two seeds of the lab."""

NO_SIGNAL = 0.9
"""Mean share of groups without signal over `LONG` records from which nothing is learnt: nine of ten
rollouts are wasted. By definition of an advantage; a policy that has solved its prompts is there,
too, and should get others."""

ADVANTAGE_RANGE = ("critic/advantages/max", "critic/advantages/min")
"""As verl calls them; it logs neither shares nor spreads."""

SUDDEN_SHARE = 0.3
"""Rise of that share within `LONG` records from which it is no progress of the policy. Chosen."""

NEAR_ZERO, DEAD_SHARE = 0.05, 0.1
"""Nats, and share of the first entropies, under which a policy has stopped exploring. Chosen: an
entropy collapse of a public thread ends at 0.001."""

EARLY, EARLY_LEVEL, EARLY_LOST = 3, 0.5, 0.1
"""Rewards in a row that say that a reward between 0 and 1 is gone before there is a reference, the
level it must have had, and the fraction of it that they stay under. Source: eight policies that
collapsed in public runs, from 0.9 to 0.0 within 2 to 7 records, of which logs have 20 to 40."""

EARLY_NOISE = 3.0
"""Deviations of one reward that the level must have. Chosen: of groups of four responses, half of
them right, three in a row may well be all wrong."""

STRAY = 0.25
"""The fraction of the level under which a reward before a collapse is stray, and the fraction of
rewards that may be: the collapse may have begun among them."""

UNLEARNT, UNLEARNT_RECORDS, UNLEARNT_STEPS = 0.05, 16, 80
"""Mean reward, of at most 1, under which a policy has learnt nothing since its first record, and
the records and steps that it must have had. Source: a public run that stays at 0.02 for 100
steps."""

BELOW_BEST = 0.9
"""A policy whose reward is under this share of its best has not converged."""

HACK_FALL, HACK_RECORDS = 0.2, 2
"""Share of its best that the held-out reward has lost, by the median of so many evaluations, while
the reward rose. Chosen: an evaluation of 64 prompts has a standard error of 0.06."""

LARGEST = 1e100
"""Values beyond count as it: their squares must not overflow."""

QUIET = 24
"""Records without a symptom after which it is reported again."""


class PolicySignals(Detector):
    """One finding for each change of a signal that is neither noise nor progress."""

    name = "policy"
    listens_to = KnownChange.CHANGED

    def __init__(self) -> None:
        self._is_policy = False
        self._tracks = StatefulDict(lambda name: _Track())
        self._count = 0
        self._said: dict[str, int] = {}
        """By symptom: the number of the record that showed it last."""
        self._has_value_loss = self._has_responses = False
        self._has_learnt = False
        """Whether groups ever had a signal."""
        self._first_entropies: list[float] = []
        self._entropies: deque[tuple[int, float]] = deque(maxlen=LONG)
        """The latest ones, with their steps."""
        self._best_reward = -math.inf
        """The highest mean of `LONG` rewards."""
        self._rewards = _FirstRewards()
        self._evaluations: deque[float] = deque(maxlen=HACK_RECORDS)
        self._best_held_out, self._reward_then = -math.inf, math.inf
        """The best held-out reward, and the reward in training at that time."""
        self._last_good = 0
        """Tick of the last evaluation that was not far below the best one."""

    def on_event(self, change: KnownChange) -> None:
        """Compare with what comes from here on."""
        self._tracks.clear()
        self._entropies.clear()

    def update(self, record: Record) -> list[Finding]:
        recorded = record.signals
        self._is_policy |= not signals.POLICY_SIGNALS.isdisjoint(recorded)
        self._has_value_loss |= signals.VALUE_LOSS in recorded
        self._has_responses |= not signals.OF_RESPONSES.isdisjoint(recorded)
        if not self._is_policy or _JUDGED.isdisjoint(recorded):
            return []
        self._count += 1
        if 0 < (entropy := recorded.get(signals.ENTROPY, math.nan)) < math.inf:
            self._entropies.append((record.step, entropy))
        found: list[Finding | None] = []
        for name, rules in RULES.items():
            value = recorded.get(name, math.nan)
            if math.isfinite(value):
                track = self._tracks[name]
                track.add(value, record.tick)
                found += [self._judge(record, name, rule, track) for rule in rules]
        found.append(self._judge_first_rewards(record))
        found.append(self._judge_signal(record))
        found.append(self._judge_entropy(record))
        found.append(self._judge_held_out(record))
        return [finding for finding in found if finding is not None]

    def relevant_rows(self, block: Block) -> IntArray:
        """Return the rows with a signal of a policy, once there is one."""
        is_relevant = np.zeros(len(block), dtype=np.bool_)
        for name in block.columns.keys() & (_JUDGED | signals.OF_RESPONSES | {signals.VALUE_LOSS}):
            is_relevant |= block.columns[name].present
        rows = np.flatnonzero(is_relevant)
        if self._is_policy or not len(rows):
            return rows
        shows = np.zeros(len(block), dtype=np.bool_)
        for name in block.columns.keys() & signals.POLICY_SIGNALS:
            shows |= block.columns[name].present
        return rows[rows >= int(np.argmax(shows))] if shows.any() else rows[:0]

    def _judge(self, record: Record, name: str, rule: _Rule, track: "_Track") -> Finding | None:
        for length in (SHORT, LONG):
            change = track.change(length, is_of_peak=rule.is_of_peak)
            if change is None:
                continue
            usual, now, z, since = change
            is_far = rule.sign * (now - usual) >= max(abs(rule.factor - 1) * abs(usual), rule.least)
            if rule.sign * z >= MIN_Z[length] and is_far:
                facts = {"z": z, "records": float(length)}
                if rule.symptom is Symptom.ENTROPY_FELL:
                    facts |= arrival(self._entropies)
                details = {"onset_tick": since, "facts": facts}
                return self._say(record, rule.symptom, name, now, usual, rule.severity, **details)
        return None

    def _say(
        self,
        record: Record,
        symptom: Symptom,
        signal: str,
        value: float,
        expected: float,
        severity: Severity = Severity.ALARM,
        **details: Any,
    ) -> Finding | None:
        """Return the finding, unless it is that of the records before, which goes on."""
        last, self._said[symptom] = self._said.get(symptom, -QUIET), self._count
        if self._count - last < QUIET:
            return None
        return self.finding(
            record, symptom, severity, signal, value=value, expected=expected, **details
        )

    def _judge_first_rewards(self, record: Record) -> Finding | None:
        """Judge rewards of at most 1 that are gone, or never came, before there is a reference."""
        value = record.signals.get(signals.REWARD, math.nan)
        if not math.isfinite(value):
            return None
        self._rewards.add(value, record)
        if gone := self._rewards.gone():
            level, now, since = gone
            return self._say(
                record, Symptom.REWARD_FELL, signals.REWARD, now, level, onset_tick=since
            )
        # The reward of an environment has a scale of its own: 0.05 may be much.
        if self._has_value_loss and not self._has_responses:
            return None
        if (mean := self._rewards.never_came(record.step)) is not None:
            return self._say(record, Symptom.NO_SIGNAL, signals.REWARD, mean, UNLEARNT)
        return None

    def _judge_signal(self, record: Record) -> Finding | None:
        """Judge the share of groups that teach nothing."""
        value = _no_signal_share(record.signals)
        if not math.isfinite(value):
            return None
        track = self._tracks[signals.NO_SIGNAL_SHARE]
        track.add(value, record.tick)
        now, change = track.mean(LONG), track.change(LONG)
        if now is None or now < NO_SIGNAL:
            self._has_learnt |= now is not None
            return None
        reward = self._tracks[signals.REWARD].mean(LONG)
        is_best = reward is not None and reward >= BELOW_BEST * self._best_reward
        is_sudden = change is not None and now - change[0] > SUDDEN_SHARE
        # A policy that has come to solve its prompts is done; others are stuck.
        is_done = self._has_learnt and is_best and not is_sudden
        severity = Severity.WARN if is_done else Severity.ALARM
        return self._say(
            record, Symptom.NO_SIGNAL, signals.NO_SIGNAL_SHARE, now, NO_SIGNAL, severity
        )

    def _judge_entropy(self, record: Record) -> Finding | None:
        """Judge an entropy that has fallen slowly to almost nothing."""
        reward = self._tracks[signals.REWARD].mean(LONG)
        if reward is not None:
            self._best_reward = max(self._best_reward, reward)
        entropy = record.signals.get(signals.ENTROPY, math.nan)
        if not math.isfinite(entropy):
            return None
        if len(self._first_entropies) < MIN_REFERENCE:
            self._first_entropies.append(entropy)
            return None
        now, start = self._tracks[signals.ENTROPY].mean(LONG), median(self._first_entropies)
        if now is None or reward is None or not 0 <= now < min(NEAR_ZERO, DEAD_SHARE * start):
            return None
        if reward >= BELOW_BEST * self._best_reward or self._best_reward <= 0:
            return None
        return self._say(record, Symptom.ENTROPY_FELL, signals.ENTROPY, now, start)

    def _judge_held_out(self, record: Record) -> Finding | None:
        """Judge a held-out reward that falls while the reward in training rises."""
        value = record.signals.get(signals.EVAL_REWARD, math.nan)
        reward = self._tracks[signals.REWARD].mean(SHORT)
        if not math.isfinite(value) or reward is None:
            return None
        self._evaluations.append(value)
        now = median(self._evaluations)
        if len(self._evaluations) == HACK_RECORDS and now > self._best_held_out:
            self._best_held_out, self._reward_then = now, reward
        if value > (1 - HACK_FALL) * self._best_held_out:
            self._last_good = record.tick
        if not self._best_held_out > 0 or now > (1 - HACK_FALL) * self._best_held_out:
            return None
        if reward <= self._reward_then:
            return None
        best = self._best_held_out
        since = min(self._last_good + 1, record.tick)
        return self._say(
            record, Symptom.REWARD_HACKED, signals.EVAL_REWARD, now, best, onset_tick=since
        )


def _no_signal_share(recorded: Mapping[str, float]) -> float:
    """Return the share of groups without signal, or 1 where all rewards are known to be equal."""
    if signals.NO_SIGNAL_SHARE in recorded:
        return recorded[signals.NO_SIGNAL_SHARE]
    high, low = (recorded.get(name, math.nan) for name in ADVANTAGE_RANGE)
    spread = recorded.get(signals.REWARD_STD, high - low)
    return float(spread == 0.0) if math.isfinite(spread) else math.nan


def arrival(entropies: Sequence[tuple[int, float]]) -> dict[str, float]:
    """Return the step at which an entropy reaches `NEAR_ZERO`, with its 90 % range.

    Empty if it is there already, or does not surely fall. The logarithm is fitted by the median of
    all slopes, which single outliers do not turn (Theil and Sen).
    """
    steps = [float(step) for step, _ in entropies]
    logs = [math.log(entropy / NEAR_ZERO) for _, entropy in entropies]
    pairs = [(a, b) for a, b in combinations(range(len(steps)), 2) if steps[b] > steps[a]]
    if len(pairs) < LONG or median(logs[-SHORT:]) <= 0:
        return {}
    slope = median((logs[b] - logs[a]) / (steps[b] - steps[a]) for a, b in pairs)
    height = median(y - slope * x for x, y in zip(steps, logs, strict=True))
    rest = [y - slope * x - height for x, y in zip(steps, logs, strict=True)]
    middle = sum(steps) / len(steps)
    width = math.sqrt(sum((step - middle) ** 2 for step in steps))
    # Twelve values give a deviation of their own: Student's t with ten degrees of freedom.
    error = 1.81 * math.sqrt(sum(one**2 for one in rest) / (len(rest) - 2)) / width
    if slope + error >= 0:
        return {}
    level = height + slope * middle
    return {
        "arrival_value": NEAR_ZERO,
        "arrival": middle - level / slope,
        "arrival_low": middle - level / (slope - error),
        "arrival_high": middle - level / (slope + error),
    }


_JUDGED = frozenset(
    {*RULES, signals.NO_SIGNAL_SHARE, signals.REWARD_STD, *ADVANTAGE_RANGE, signals.EVAL_REWARD}
)


class _FirstRewards(Stateful):
    """The first rewards of a run, where all lie between 0 and 1."""

    def __init__(self) -> None:
        self._values: list[float] = []
        self._ticks: list[int] = []
        self._first_step = 0

    def add(self, value: float, record: Record) -> None:
        if not self._values:
            self._first_step = record.step
        if len(self._values) < MIN_REFERENCE + SHORT + 1:  # one more than are judged
            self._values.append(value if 0 <= value <= 1 else math.nan)
            self._ticks.append(record.tick)

    def gone(self) -> tuple[float, float, int] | None:
        """Return the level that was lost, the mean of what is left, and the tick of the loss."""
        before, now = self._values[:-EARLY], self._values[-EARLY:]
        if not 2 <= len(before) < MIN_REFERENCE + SHORT - EARLY + 1 or self._is_unbounded:
            return None
        level = median(before)
        usual = [value for value in before if value >= STRAY * level]
        if level < EARLY_LEVEL or len(usual) < (1 - STRAY) * len(before):
            return None
        if max(now) >= EARLY_LOST * level or level < EARLY_NOISE * pstdev(usual):
            return None
        since = len(before)
        while self._values[since - 1] < level / 2:
            since -= 1
        return level, sum(now) / EARLY, self._ticks[since]

    def never_came(self, step: int) -> float | None:
        """Return the mean reward if it is next to nothing, and has been since the first record."""
        count, steps = len(self._values), step - self._first_step
        is_full = UNLEARNT_RECORDS <= count <= MIN_REFERENCE + SHORT
        if not is_full or steps < UNLEARNT_STEPS or self._is_unbounded:
            return None
        mean = sum(self._values) / count
        return mean if mean < UNLEARNT and max(self._values) < EARLY_LEVEL else None

    @property
    def _is_unbounded(self) -> bool:
        return any(map(math.isnan, self._values))


class _Track(Stateful):
    """The latest values of one signal."""

    def __init__(self) -> None:
        self._values: deque[float] = deque(maxlen=LONG + REFERENCE)
        self._ticks: deque[int] = deque(maxlen=LONG)

    def add(self, value: float, tick: int) -> None:
        self._values.append(min(max(value, -LARGEST), LARGEST))
        self._ticks.append(tick)

    def mean(self, length: int) -> float | None:
        """Return the mean of the latest values; None if there are too few."""
        if len(self._values) < length:
            return None
        return sum(islice(reversed(self._values), length)) / length

    def change(
        self, length: int, *, is_of_peak: bool = False
    ) -> tuple[float, float, float, int] | None:
        """Return the usual level, the present mean, its distance in standard errors, and the tick
        from which on the values count as present; None if there are too few."""
        now = self.mean(length)
        before = list(self._values)[-(length + REFERENCE) : -length]
        if now is None or len(before) < MIN_REFERENCE:
            return None
        usual = median(before)
        # A floor for signals that never moved: any change of them is many deviations.
        noise = max(sigma_around(usual, before), jump_sigma(before), 1e-3 * abs(usual), 1e-9)
        error = noise * math.sqrt(1 / length + 1 / len(before))
        if is_of_peak:
            usual = max(before)
        # It began with the first value that is on the far side of the middle.
        latest = list(self._values)[-length:]
        far = [(value - usual) * (now - usual) > 0.5 * (now - usual) ** 2 for value in latest]
        since = far.index(True) if True in far else 0
        return usual, now, (now - usual) / error, self._ticks[since - length]
