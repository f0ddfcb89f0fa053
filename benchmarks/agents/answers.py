"""The answer of a tool to one case, and how many answers are right.

    {"verdict": "incident", "onset": 312, "class": "divergent", "act": "stop"}

`verdict` is healthy or incident; `onset` a step; `class` one of trimtab's words (docs/reports.md);
`act` one of continue, wait, lower LR, roll back, stop. What a tool does not say is null, and wrong
wherever it is asked for, but for the class: who has no classes is not scored on them.
"""

import json
import shlex
import subprocess
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.agents.cases import ACT, CONTINUE, Case
from benchmarks.detect.intervals import share_of
from benchmarks.results import table

SECONDS = 120.0
"""How long a tool may take for a file."""

HEADER = (
    *("tool", "healthy runs called healthy", "told to act on a run that needs nothing"),
    *("incidents seen", "dated right", "class right", "told to act where it is needed"),
    "all of it right",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a tool says about one run."""

    verdict: str
    onset: int | None = None
    named: str | None = None
    """The class."""
    act: str = "continue"

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> "Answer":
        """Return the answer that a tool has printed; raises ValueError if it is none."""
        verdict, act, onset = values.get("verdict"), values.get("act"), values.get("onset")
        if verdict not in ("healthy", "incident") or act not in (*CONTINUE, *ACT):
            raise ValueError(f"verdict {verdict!r} or act {act!r} is none of the words")
        if onset is not None and not isinstance(onset, int):
            raise ValueError(f"onset is a step or null, got {onset!r}")
        return cls(verdict=verdict, onset=onset, named=values.get("class"), act=act)

    def to_json(self) -> dict[str, Any]:
        return {
            "verdict": self.verdict,
            "onset": self.onset,
            "class": self.named,
            "act": self.act,
        }


Tool = Callable[[Path], Answer]


def command_tool(command: str) -> Tool:
    """Return a tool that is a command: `{path}` in it is the file, its output the answer."""

    def ask(path: Path) -> Answer:
        words = [word.replace("{path}", str(path)) for word in shlex.split(command)]
        done = subprocess.run(words, capture_output=True, text=True, timeout=SECONDS, check=False)
        return Answer.from_json(json.loads(done.stdout))

    return ask


def ask_all(tool: Tool, folder: Path, cases: Iterable[Case]) -> dict[str, Answer]:
    """Return the answers by file; a tool that fails on a file says nothing about it."""
    answers = {}
    for case in cases:
        try:
            answers[case.file] = tool(folder / case.file)
        except (OSError, ValueError, subprocess.SubprocessError) as error:
            print(f"{case.file}: {error}")
    return answers


def is_onset_right(case: Case, answer: Answer) -> bool:
    return answer.onset is not None and any(a <= answer.onset <= b for a, b in case.onsets)


def is_right(case: Case, answer: Answer | None) -> bool:
    """Return whether verdict, onset and act are right, as far as they are asked for."""
    if answer is None or (answer.verdict == "incident") is not case.is_incident:
        return False
    is_dated = not case.onsets or is_onset_right(case, answer)
    return is_dated and answer.act in case.acts


def score(name: str, cases: Sequence[Case], answers: Mapping[str, Answer]) -> tuple[str, ...]:
    """Return the row of a tool; each share with its interval of 95 %."""
    found = [(case, answers.get(case.file)) for case in cases]
    calm = [one for one in found if not one[0].is_incident]
    loud = [one for one in found if one[0].is_incident]
    needless = [one for one in found if one[0].acts == CONTINUE]
    needed = [one for one in found if one[0].acts == ACT]
    dated = [one for one in loud if one[0].onsets]
    classed = [one for one in loud if one[0].classes]
    has_classes = any(answer.named for answer in answers.values())
    return (
        name,
        _share(calm, lambda case, answer: answer.verdict == "healthy"),
        _share(needless, lambda case, answer: answer.act in ACT),
        _share(loud, lambda case, answer: answer.verdict == "incident"),
        _share(dated, is_onset_right),
        _share(classed, lambda case, answer: answer.named in case.classes) if has_classes else "-",
        _share(needed, lambda case, answer: answer.act in ACT),
        share_of(sum(is_right(*one) for one in found), len(found)),
    )


def _share(
    found: Sequence[tuple[Case, Answer | None]], test: Callable[[Case, Answer], bool]
) -> str:
    return share_of(
        sum(answer is not None and test(case, answer) for case, answer in found), len(found)
    )


def score_table(cases: Sequence[Case], tools: Mapping[str, Mapping[str, Answer]]) -> str:
    return table(HEADER, [score(name, cases, answers) for name, answers in tools.items()])


def group_table(cases: Sequence[Case], tools: Mapping[str, Mapping[str, Answer]]) -> str:
    """Return how many cases of each group are right in all that is asked for."""
    groups = list(dict.fromkeys(case.group for case in cases))
    rows = []
    for name, answers in tools.items():
        cells = []
        for group in groups:
            part = [case for case in cases if case.group == group]
            right = sum(is_right(case, answers.get(case.file)) for case in part)
            cells.append(f"{right} of {len(part)}")
        rows.append([name, *cells])
    return table(["tool", *groups], rows)


def write_answers(path: Path, answers: Mapping[str, Answer]) -> None:
    values = {file: answer.to_json() for file, answer in answers.items()}
    path.write_text(json.dumps(values, indent=1) + "\n", encoding="utf-8")


def read_answers(path: Path) -> dict[str, Answer]:
    values = json.loads(path.read_text(encoding="utf-8"))
    return {file: Answer.from_json(answer) for file, answer in values.items()}
