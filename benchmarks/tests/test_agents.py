"""Judges for agents: the cases, the score, the rules of others, the agent without a model."""

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from benchmarks.agents.answers import (
    Answer,
    ask_all,
    command_tool,
    is_right,
    read_answers,
    score,
    score_table,
    write_answers,
)
from benchmarks.agents.cases import ACT, Case, read_cases, write_cases
from benchmarks.agents.contenders import (
    alarm_answer,
    ask_trimtab,
    contenders,
    marin_alarms,
    wandb_answer,
    wandb_diagnosis,
)
from benchmarks.agents.watcher import LOOKS, Agent
from tests.kit.public_runs import MISSING, RUNS
from tests.kit.synthetic import falling_loss

HEALTHY = Case(file="a.csv", group="healthy", source="a", is_held_out=False, is_incident=False)
DEAD = Case(
    file="b.csv",
    group="lost",
    source="b",
    is_held_out=True,
    is_incident=True,
    onsets=((300, 340),),
    classes=("dead",),
    acts=ACT,
)


def test_an_answer_is_right_in_all_or_wrong() -> None:
    calm = Answer(verdict="healthy")
    assert is_right(HEALTHY, calm)
    assert not is_right(HEALTHY, Answer(verdict="healthy", act="stop"))
    assert not is_right(HEALTHY, Answer(verdict="incident", onset=3))
    assert not is_right(HEALTHY, None)
    good = Answer(verdict="incident", onset=310, named="dead", act="roll back")
    assert is_right(DEAD, good)
    assert not is_right(DEAD, Answer(verdict="incident", onset=200, act="stop"))
    assert not is_right(DEAD, Answer(verdict="incident", onset=310, act="wait"))
    row = score("x", [HEALTHY, DEAD], {"a.csv": calm, "b.csv": good})
    assert [cell.split(";")[0] for cell in row[1:]] == [
        *("1 of 1", "0 of 1", "1 of 1", "1 of 1", "1 of 1", "1 of 1"),
        "2 of 2",
    ]
    assert score("x", [HEALTHY, DEAD], {})[-1].startswith("0 of 2")


def test_a_tool_is_any_command(tmp_path: Path) -> None:
    script = tmp_path / "tool.py"
    script.write_text(
        "import json, sys\n"
        "text = open(sys.argv[1]).read()\n"
        "if 'bad' in text: print(json.dumps({'verdict': 'healthy', 'act': 'pray'}))\n"
        "else: print(json.dumps({'verdict': 'healthy', 'onset': None, 'class': None, "
        "'act': 'continue'}))\n"
    )
    (tmp_path / "a.csv").write_text("step,loss\n")
    (tmp_path / "b.csv").write_text("bad\n")
    answers = ask_all(
        command_tool(f"{sys.executable} {script} {{path}}"), tmp_path, [HEALTHY, DEAD]
    )
    assert answers == {"a.csv": Answer(verdict="healthy")}
    write_answers(tmp_path / "x.json", answers)
    assert read_answers(tmp_path / "x.json") == answers
    for values in ({}, {"verdict": "healthy", "act": "continue", "onset": "312"}):
        with pytest.raises(ValueError, match=r"none of the words|onset is a step"):
            Answer.from_json(values)


@pytest.mark.skipif(not RUNS.exists(), reason=MISSING)
def test_the_cases_have_no_names_and_their_truth_is_apart(tmp_path: Path) -> None:
    cases = write_cases(tmp_path)
    assert read_cases(tmp_path) == cases
    assert {case.group for case in cases} == {"healthy", "came back", "up", "lost", "stories"}
    for case in cases:
        text = (tmp_path / case.file).read_text()
        assert case.source not in text
        assert case.source not in case.file
        assert text.startswith("step,")
        for first, last in case.onsets:
            assert first <= last
    with_norms = [case for case in cases if case.group == "healthy"]
    assert ask_trimtab(tmp_path / with_norms[0].file).act in ("continue", "wait")


def write(path: Path, losses: "np.ndarray[Any, Any]") -> Path:
    rows = "".join(f"{at},{loss}\n" for at, loss in enumerate(losses))
    path.write_text("step,loss\n" + rows)
    return path


def test_every_contender_answers_in_the_words(tmp_path: Path) -> None:
    losses = falling_loss(600)
    losses[400:] = np.nan
    path = write(tmp_path / "dead.csv", losses)
    case = DEAD
    answers = {}
    for name, ask in contenders().items():
        answer = ask(path)
        assert Answer.from_json(answer.to_json()) == answer
        answers[name] = {case.file: answer}
    assert answers["trimtab"][case.file].onset == 400
    assert answers["trimtab"][case.file].act in ACT
    assert len(score_table([case], answers).splitlines()) == 2 + len(answers)


# W&B's rule, by hand from its source


def test_the_rule_of_wandb_says_what_it_was_written_to_say() -> None:
    flat, down, up = np.full(100, 2.0), np.linspace(9, 1, 100), np.linspace(1, 3, 100)
    assert wandb_diagnosis(flat)["diagnosis"] == "converged"
    assert wandb_diagnosis(down)["diagnosis"] == "training"
    assert wandb_diagnosis(up)["diagnosis"] == "diverging"
    assert wandb_diagnosis(flat[:9])["diagnosis"] == "insufficient_data"
    # The second half is lower, and the last tenth is within 5 % of it.
    assert wandb_diagnosis(np.where(np.arange(100) < 50, 3.0, 2.0))["diagnosis"] == "converged"
    lost = np.where(np.arange(100) < 90, down, np.nan)
    assert wandb_diagnosis(lost)["nan_warnings"] == {"loss": 10}
    assert wandb_answer(wandb_diagnosis(lost)).act == "stop"
    assert wandb_answer(wandb_diagnosis(flat)).act == "stop"
    assert wandb_answer(wandb_diagnosis(flat), stops_converged=False).act == "continue"


def test_the_alert_of_marin_is_quiet_for_a_spike_and_fires_for_a_level() -> None:
    draw = np.random.default_rng(0)
    loss = 3 + 0.01 * draw.standard_normal(300)
    spiked, raised, lost = loss.copy(), loss.copy(), loss.copy()
    spiked[200:204] += 5
    raised[200:] += 1
    lost[200] = np.nan
    assert not marin_alarms(loss).any()
    assert not marin_alarms(spiked).any()
    first = int(np.flatnonzero(marin_alarms(raised))[0])
    assert first == 204  # the lowest of five records
    assert np.flatnonzero(marin_alarms(lost))[0] == 200
    answer = alarm_answer(np.arange(300), marin_alarms(raised))
    assert (answer.verdict, answer.onset) == ("incident", 204)


# The agent


def test_the_agent_believes_an_act_that_stands_and_counts_what_it_cost() -> None:
    said = {"a": ["none"] * 9, "b": ["wait", "stop", "wait", "stop", "stop", "stop"]}
    asked: list[tuple[str, str]] = []

    async def ask(name: str, token: str) -> str:
        asked.append((name, token))
        at = sum(one == name for one, _ in asked) - 1
        return json.dumps({"act": said[name][at], "step": at, "token": f"{at}.abcdef"})

    agent = Agent(ask, ["a", "b"])

    async def watch() -> None:
        for _ in range(6):
            await agent.look()

    asyncio.run(watch())
    calm, ended = agent.runs
    assert calm.decision == "continue"
    assert (ended.decision, ended.step) == ("stop", 4)
    assert agent.num_calls == len(asked) == 6 + 5
    assert asked[2] == ("a", "0.abcdef")
    assert LOOKS == 2
