"""Facts of a run that its log states: precision, seed, number of ranks, a few settings.

Arguments are printed as tables, dicts, command lines and banners; where they say nothing, a remark
beside the log does ("bf16, 8xH100"). A fact counts only if all places that state it agree. What
states a fact is data: `facts.toml`.
"""

import re
import tomllib
from dataclasses import replace
from importlib.resources import files
from itertools import islice
from pathlib import Path

from trimtab.core.run import RunFacts

_STATES = tomllib.loads(files("trimtab.readers").joinpath("facts.toml").read_text(encoding="utf-8"))


def _compiled(kind: str, flags: str = "(?i)") -> dict[str, re.Pattern[str]]:
    parts = _STATES["parts"]
    fill = re.compile("|".join(parts))
    return {
        name: re.compile(flags + fill.sub(lambda part: parts[part[0]], pattern))
        for name, pattern in _STATES[kind].items()
    }


_WORDS = _STATES["words"].split()
_DTYPES = _compiled("dtypes", flags="")
_NUMBERS = _compiled("numbers")
_REMARKS = _compiled("remarks")


_DIGITS = re.compile(r"\d+")

MAX_NUMBERS = 12
"""Runs of digits in a remark. Chosen: a record of a trainer has a dozen numbers, most with a
point."""


def find_facts(text: str) -> RunFacts:
    """Return what a text states about its run; what it states in two ways is left open."""
    folded = text.casefold()
    words = [word for word in _WORDS if word in folded]
    lines = text.split("\n") if words else []
    lines = [line for line in lines if any(word in line.casefold() for word in words)]
    text = "\n".join(lines)
    # A line of many numbers is a record, not a remark.
    remarks = "\n".join(line for line in lines if len(_DIGITS.findall(line)) <= MAX_NUMBERS)
    sentences = re.split(r"\n|(?<=[.!?;])\s", remarks)
    dtypes = {dtype for dtype, pattern in _DTYPES.items() if pattern.search(text)}
    # An fp8 run computes its other operators in bf16, and says so.
    dtypes = {"fp8"} if "fp8" in dtypes else dtypes or _remarked_dtypes(sentences)
    found = {name: _stated(pattern, text) for name, pattern in _NUMBERS.items()}
    sure = (one for one in sentences if "node" not in one and not _REMARKS["doubt"].search(one))
    seed, ranks = found.pop("seed"), found.pop("ranks")
    ranks = ranks or _stated(_REMARKS["ranks"], "\n".join(sure))
    return RunFacts(
        dtype=dtypes.pop() if len(dtypes) == 1 else None,
        settings={name: number for name, number in found.items() if number is not None},
        seed=None if seed is None else int(seed),
        ranks=None if ranks is None else int(ranks),
    )


def _remarked_dtypes(sentences: list[str]) -> set[str]:
    """Return the precisions that remarks on the run name; none if one of them is in doubt."""
    remarks = [one for one in sentences if _REMARKS["precision"].search(one)]
    if any(map(_REMARKS["doubt"].search, remarks)):
        return set()
    said = {name for one in remarks for name in _REMARKS["precision"].findall(one.lower())}
    is_of_run = any(map(_REMARKS["of_the_run"].search, remarks))
    return {name.replace("bfloat", "bf").replace("float", "fp") for name in said if is_of_run}


def _stated(pattern: re.Pattern[str], text: str) -> float | None:
    found = {float(match[match.lastindex or 0]) for match in pattern.finditer(text)}
    return found.pop() if len(found) == 1 else None


_SAVED = re.compile(
    r"^[\w.=-]{0,64}?(?:checkpoint|ckpt|step|iter)[-_=]?(\d{1,12})(?:\.ckpt|\.pth?|\.safetensors)?$"
)
"""The names under which trainers save: checkpoint-500 (HF), epoch=1-step=500.ckpt (Lightning),
global_step500 (DeepSpeed), iter_0000500 (Megatron), step-500 (torchtitan)."""

_SAYS_SAVED = re.compile(
    r"(?i)\b(?:sav(?:ed|ing)|wrote|writing)\b[^\n]{0,120}?([^\s/'\"`]{1,80})/?\W*$"
)
"""A line that says that a checkpoint was saved, and the last part of its path."""

_FOLDERS = (".", "checkpoints", "../checkpoints", "../../checkpoints")
"""Where checkpoints are, from the folder of a log."""

_STATE_OF_HF = "trainer_state.json"
"""A log that HF's Trainer keeps inside each checkpoint: the others are beside its folder."""

MAX_SAVED, MAX_ENTRIES = 256, 4096
"""Checkpoints that are remembered, and names in a folder that are looked at."""


def find_checkpoints(path: Path, text: str) -> dict[int, str]:
    """Return the checkpoints whose names stand beside a log or in its text, by their step."""
    said = [m[1] for line in text.split("\n") if (m := _SAYS_SAVED.search(line.rstrip()))]
    folder = path if path.is_dir() else path.parent
    places = (*_FOLDERS, "..") if path.name == _STATE_OF_HF else _FOLDERS
    beside = [name for place in places for name in _names_in(folder / place)]
    found = {int(m[1]): name for name in (*said, *beside) if (m := _SAVED.match(name))}
    return dict(sorted(found.items())[-MAX_SAVED:])


def _names_in(folder: Path) -> list[str]:
    try:
        return [entry.name for entry in islice(folder.iterdir(), MAX_ENTRIES)]
    except OSError:
        return []


def known_facts(stated: RunFacts, given: RunFacts) -> RunFacts:
    """Return the facts with those given by the user in place of those that the log states."""
    changes = {name: getattr(given, name) for name in ("dtype", "seed", "ranks", "link")}
    known = {name: fact for name, fact in changes.items() if fact is not None}
    return replace(
        stated,
        settings={**stated.settings, **given.settings},
        checkpoints={**stated.checkpoints, **given.checkpoints},
        **known,
    )
