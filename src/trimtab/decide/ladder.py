"""The ladder: from a situation to a decision.

too early            wait: most trouble of the loss passes within 8 steps
a probe would show   probe: is it the batch, or are the weights hurt?
otherwise            the cheapest option that evidence and budgets permit
"""

import contextlib
import dataclasses
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trimtab.core.config import LadderConfig
from trimtab.core.findings import Symptom
from trimtab.core.jsonable import number_from_json, to_jsonable
from trimtab.decide.costs import cost, shows_in_loss
from trimtab.decide.readings import Reading, reading_of
from trimtab.decide.situation import (
    ROLLBACKS,
    SKIPPING,
    Act,
    Decision,
    Option,
    SettingDifference,
    Situation,
)
from trimtab.decide.symptoms import PASSIVE, STATE_FAMILIES, Family, traits_of

WINDOW_STEPS = 1000
"""Steps over which rollbacks and skipped batches are counted."""

PROBE_AFTER_STEPS = 8
"""Steps after an alarm of the loss before the weights are probed. Source: gross harm is plain after
8 steps in the lab, and hard batches are over."""

SECOND_PROBE_AFTER_STEPS = 32
"""Steps after the alarm at which they are probed again. Source: moderate harm after 8 steps
correlates with the final one by 0.30, after 24 to 40 steps by 0.72."""

CHECK_STEPS = 16
"""Steps past the onset at which a remedy is checked, at least. Source: 34 of 34 checks at 16 steps
were right, except for a fault that takes 30 steps to show."""

BAD_IN_A_ROW = 3
"""Steps in a row that are discarded or not finite, and a probe does not wait any longer."""

_READ_BY_PROBE = frozenset({Family.LOSS, Family.NONFINITE})


def decide(situation: Situation, config: LadderConfig) -> Decision:
    """What to do; the same for the same situation, always."""
    reading = reading_of(situation)
    if (early := _too_early(situation, reading)) is not None:
        wait = Option(act=Act.WAIT, cost=0.0)
        return Decision(chosen=wait, reason=early[0], alternatives=(), look_again=early[1])
    options = sorted(_options(situation, reading, config), key=_order)
    chosen = next(option for option in options if not option.refused)
    return Decision(
        chosen=chosen,
        reason=_reason(chosen, situation, reading),
        alternatives=tuple(option for option in options if option is not chosen),
        look_again=_look_again(chosen, situation),
    )


def check_step(*, onset: int, alarm: int) -> int:
    """Return when a remedy is checked: past the onset by as long as the fault took to show."""
    return onset + max(CHECK_STEPS, alarm - onset)


def _too_early(situation: Situation, reading: Reading | None) -> tuple[str, int | None] | None:
    """Why nothing is done yet, and when to look again."""
    family, harmed = situation.family, reading is not None and not reading.is_healthy
    if situation.is_stuck or harmed or situation.suspect_rank is not None:
        return None
    if family in PASSIVE:
        return f"{family}: nothing to do unless the loss or the weights follow", None
    if situation.batch_was_odd and not situation.unplanned and family in STATE_FAMILIES:
        return "the batch of that very step was odd, and the next ones were not", None
    if situation.differences and not situation.unplanned and family not in _READ_BY_PROBE:
        return "a planned change explains it", None
    if (
        family in _READ_BY_PROBE
        and situation.waited < PROBE_AFTER_STEPS
        and situation.bad_in_a_row < BAD_IN_A_ROW
        and Symptom.NONFINITE_NORM not in situation.symptoms  # the weights themselves
    ):
        return "most trouble of the loss passes by itself", PROBE_AFTER_STEPS
    return None


def _options(
    situation: Situation, reading: Reading | None, config: LadderConfig
) -> Iterator[Option]:
    """Everything that could be done, with what speaks against it."""
    if _wants_probe(situation):
        # Known to be cheap, and everything else is decided better afterwards.
        yield Option(act=Act.PROBE, cost=cost(Act.PROBE, situation, reading))
        for act in (Act.WAIT, Act.RESTORE, Act.STOP):
            option = _option(act, situation, reading)
            yield dataclasses.replace(option, refused="not before a probe")
        return
    for act in Act:
        if act is Act.PROBE or not _applies(act, situation):
            continue
        option = _option(act, situation, reading)
        yield dataclasses.replace(option, refused=_refusal(act, situation, reading, config))


def _wants_probe(situation: Situation) -> bool:
    if not situation.can_probe or situation.unplanned or situation.suspect_rank is not None:
        return False
    if situation.has_broken_weights and not situation.recurrences:
        return False  # few batches may meet the weight that is broken
    family = situation.family
    is_read = family in _READ_BY_PROBE or (
        family in STATE_FAMILIES and (shows_in_loss(situation) or situation.recurrences > 0)
    )
    if not is_read and not situation.is_stuck:
        return False
    if situation.probe is None:
        return situation.rise is None
    # Moderate harm cannot be foretold after 8 steps: one more look.
    return situation.waited >= SECOND_PROBE_AFTER_STEPS > situation.probe_waited


def _applies(act: Act, situation: Situation) -> bool:
    """Whether there is anything that the act could be done with."""
    if act is Act.HOLD:
        return bool(situation.unplanned)
    if act is Act.QUARANTINE:
        return situation.source is not None
    if act is Act.RELAUNCH:
        return _relaunch_fits(situation) or situation.target is None
    return True


def _relaunch_fits(situation: Situation) -> bool:
    """Whether only a new process helps: the loaded state is wrong, or a device is."""
    return situation.family is Family.RESUME or situation.suspect_rank is not None


def _option(act: Act, situation: Situation, reading: Reading | None) -> Option:
    restores = act in ROLLBACKS
    holds = situation.unplanned if restores or act is Act.HOLD else ()
    skip_from = None
    if act in SKIPPING and situation.target is not None:
        # The onset is judged late by up to the margin; after a recurrence it is not trusted at all.
        late = situation.onset - situation.margin + 1
        skip_from = situation.target if situation.recurrences else max(situation.target, late)
    return Option(
        act=act,
        cost=cost(act, situation, reading),
        target=situation.target if restores else None,
        skip_from=skip_from,
        holds=holds,
    )


def _refusal(act: Act, situation: Situation, reading: Reading | None, config: LadderConfig) -> str:
    """Why an act may not be chosen; empty if it may."""
    harmed = reading is not None and not reading.is_healthy
    is_rise_alone = situation.rise is not None and situation.probe is None
    if act is not Act.WAIT and is_rise_alone and not (situation.text_changed or situation.source):
        # Weights of very small batches are noisy: in the lab a healthy run rose by 0.15.
        return "known batches became worse, but nothing shows that the data has changed"
    if act in ROLLBACKS:
        if situation.target is None:
            return f"no snapshot {situation.depth} steps before the onset"
        if situation.follows_resume and situation.target >= (situation.resumed_at or 0):
            return "every snapshot is from after the resume"
        if situation.rollbacks >= config.max_rollbacks:
            return f"{situation.rollbacks} rollbacks in {WINDOW_STEPS} steps already"
        if situation.suspect_rank is not None and not harmed and not situation.is_stuck:
            return "a rank that computes wrongly goes on after a rollback"
        if _is_one_slow_signal(situation) and not harmed and not situation.is_stuck:
            return "one slow signal alone"
    if act in SKIPPING:
        batches = situation.step - situation.onset + situation.margin
        if situation.skipped + batches > config.max_skipped_batches:
            return f"{situation.skipped} batches skipped in {WINDOW_STEPS} steps already"
        if not harmed and not situation.is_stuck:
            return "nothing shows that a batch did harm"
        is_read = situation.probe is not None or situation.rise is not None
        if not is_read and Act.RESTORE not in situation.tried:
            return "without a probe, a restore without skip is the experiment"
    if act is Act.LOWER_LR:
        if situation.recurrences < 2 or situation.unplanned:
            return "only after restores have failed, where no setting differs"
        if situation.lr_reductions >= config.max_lr_reductions:
            return f"lowered {situation.lr_reductions} times already"
    if act is Act.RELAUNCH and (not situation.relaunches_left or Act.RELAUNCH in situation.tried):
        return "nothing would start the run again, or it has been tried"
    ends_run = act is Act.STOP or (act is Act.RELAUNCH and not _relaunch_fits(situation))
    if ends_run and not harmed and not situation.is_stuck:
        return "the weights show no harm"
    return ""


def _is_one_slow_signal(situation: Situation) -> bool:
    traits = [traits_of(symptom) for symptom in situation.symptoms]
    return (
        len(set(situation.signals)) <= 1
        and not situation.is_dated
        and bool(traits)
        and all(trait.is_slow for trait in traits)
        and not situation.unplanned
    )


def _look_again(chosen: Option, situation: Situation) -> int | None:
    if chosen.act is Act.PROBE:
        return situation.waited
    is_early = situation.waited < SECOND_PROBE_AFTER_STEPS
    if chosen.act is Act.WAIT and is_early and situation.family in _READ_BY_PROBE:
        return SECOND_PROBE_AFTER_STEPS
    return None


def _reason(chosen: Option, situation: Situation, reading: Reading | None) -> str:
    """The decision in one sentence."""
    words = [f"incident ({situation.family}) since step {situation.onset}"]
    if situation.is_stuck:
        words.append(f"{situation.bad_recently} of the last 20 steps did not reach the weights")
    if reading is not None:
        what = "probe" if situation.probe is not None or situation.rise is not None else "loss"
        verdict = "healthy" if reading.is_healthy else "broken" if reading.is_gross else "hurt"
        words.append(f"{what} {reading.value - reading.mean:+.3f} nat from healthy ({verdict})")
    words += [f"{part.name} {part.before} -> {part.after}" for part in situation.unplanned[:3]]
    if situation.suspect_rank is not None:
        words.append(f"rank {situation.suspect_rank} differs from the others")
    if chosen.act is Act.QUARANTINE:
        words.append(f"source {situation.source}")
    if situation.positions is not None and chosen.act in (Act.STOP, *SKIPPING):
        words.append("data positions {} to {}".format(*situation.positions))
    if situation.note and chosen.act is Act.STOP:
        words.append(situation.note)
    if situation.recurrences:
        words.append(f"came back {situation.recurrences} times")
    words.append(f"{chosen.act} has the lowest expected cost, {chosen.cost:.0f} steps")
    return "; ".join(words)


def _order(option: Option) -> tuple[float, int]:
    """Cheapest first, the mildest of equals."""
    return option.cost, list(Act).index(option.act)


_NUMBERS = ("certainty", "probe", "rise", "loss_excess", "loss_noise", "slope")


@dataclass(frozen=True, slots=True, kw_only=True)
class Mismatch:
    """A decision that is not what its situation gives now."""

    line: int
    written: Mapping[str, Any]
    computed: Mapping[str, Any]


class DecisionLog:
    """Appends decisions to a file."""

    def __init__(self, path: Path, config: LadderConfig) -> None:
        self._path = path
        self._config = config

    def append(self, situation: Situation, decision: Decision) -> None:
        """Write one decision."""
        line = {"situation": situation, "settings": self._config, "decision": decision}
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(to_jsonable(line)) + "\n")


def read_decisions(path: Path) -> list[tuple[Situation, Act]]:
    """The situations of a file and what was decided; lines that are damaged are left out."""
    found = []
    for line in _lines(path):
        with contextlib.suppress(ValueError, KeyError, TypeError):
            entry = json.loads(line)
            act = Act(entry["decision"]["chosen"]["act"])
            found.append((situation_from_json(entry["situation"]), act))
    return found


def recompute(path: Path) -> tuple[int, list[Mismatch]]:
    """How many decisions a file has, and those that its situations do not give."""
    lines = _lines(path)
    mismatches = []
    for number, line in enumerate(lines, start=1):
        entry = json.loads(line)
        config = LadderConfig.from_dict(entry["settings"])
        computed = to_jsonable(decide(situation_from_json(entry["situation"]), config))
        if computed != entry["decision"]:
            mismatches.append(Mismatch(line=number, written=entry["decision"], computed=computed))
    return len(lines), mismatches


def situation_from_json(values: Mapping[str, Any]) -> Situation:
    """The situation that `to_jsonable` wrote."""
    found = dict(values)
    for name in ("symptoms", "signals", "slots"):
        found[name] = tuple(found[name])
    for name in _NUMBERS:
        found[name] = None if found[name] is None else number_from_json(found[name])
    found["healthy"] = tuple(number_from_json(value) for value in found["healthy"])
    found["tried"] = tuple(Act(act) for act in found["tried"])
    found["differences"] = tuple(
        SettingDifference(
            **{**part, "before": _value(part["before"]), "after": _value(part["after"])}
        )
        for part in found["differences"]
    )
    positions = found["positions"]
    found["positions"] = None if positions is None else (positions[0], positions[1])
    return Situation(**found)


def _lines(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").splitlines() if path.exists() else []


def _value(value: Any) -> Any:
    """A setting as it was: lists were tuples, and "NaN" may be a number."""
    if isinstance(value, list):
        return tuple(_value(part) for part in value)
    if isinstance(value, str):
        number = number_from_json(value)
        return value if number is None else number
    return value
