"""`trimtab selftest` passes here, and fails when what it checks is broken."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.kit import forked
from tests.kit.cases import some_of
from typer.testing import CliRunner

from trimtab.cli.main import app
from trimtab.live.measure.step_meter import StepMeter
from trimtab.live.protect.discard import Discard
from trimtab.live.ranks.exchange import RankSync
from trimtab.selftest import run
from trimtab.selftest.promises import PAPER_LAUNCHES
from trimtab.selftest.run import CHECKS, MODES, Cost, Outcome, SelfTestResult, Size
from trimtab.state.host_copy import CopyToLive

GPU_PAGE = Path(__file__).parents[2] / "docs" / "limits.md"

_head = StepMeter.step_sums


def reading(self: StepMeter, phase: Any) -> Any:
    measured = _head(self, phase)
    measured[0].item()
    return measured


def drawing(self: StepMeter, phase: Any) -> Any:
    torch.rand(1)
    return _head(self, phase)


def raising(self: StepMeter, phase: Any) -> Any:
    raise RuntimeError("planted")


def nothing(*_: object, **__: object) -> None:
    return None


def fork_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fork the ranks of the self-test, so that they have what is broken here, and import less."""

    def fork(command: list[str], **options: Any) -> forked.Forked:
        return forked.Forked(command[1:], **options)

    monkeypatch.setattr("trimtab.selftest.two_ranks.subprocess.Popen", fork)


@pytest.mark.parametrize("forks", some_of([True, False], True))
def test_every_check_passes_here_and_the_file_to_send_has_what_is_printed(
    forks: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    if forks:
        fork_ranks(monkeypatch)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr("trimtab.selftest.run.SIZES", {"cpu": Size(32, 1, 8)})
    result = CliRunner().invoke(app, ["selftest", "--device", "cpu"])
    *lines, cost, inside, counts, send, _ = result.output.splitlines()
    assert result.exit_code == 0, result.output
    assert [line.split(":")[0] for line in lines] == [f"pass  {name}" for name in CHECKS]
    assert counts.startswith(f"{len(CHECKS)} passed, 0 failed, 0 skipped on cpu")
    (kept,) = tmp_path.glob("trimtab-*")  # nothing else of ours is left
    assert send.endswith(str(kept))
    sent = json.loads(kept.read_text(encoding="utf-8"))
    assert [check["name"] for check in sent["checks"]] == list(CHECKS)
    assert sent["torch"] in counts
    for mode, ratio in sent["cost"]["ratios"].items():
        assert f"{mode} x{ratio:.2f}" in cost
        assert ratio > 1.0
        assert f"{mode} {sent['cost']['host_ms'][mode]:.2f} ms" in inside
    assert inside.endswith("on the GPU: nothing was measured on one")
    assert sent["cost"]["gpu_ms"] == {}
    assert not torch.are_deterministic_algorithms_enabled()


@pytest.mark.parametrize(
    ("name", "where", "broken", "reason"),
    [
        (
            "observe changes no bit, fp32",
            (StepMeter, "step_sums"),
            drawing,
            "weight blocks.0.norm.weight differs",
        ),
        (
            "observe changes no bit, bf16",
            (StepMeter, "step_sums"),
            raising,
            "the guard logged: trimtab: ",
        ),
        ("observe reads nothing on the host", (StepMeter, "step_sums"), reading, "20 reads"),
        (
            "the gate keeps a NaN out",
            (Discard, "via_missing_grads"),
            nothing,
            "a step with a NaN was applied",
        ),
        ("recover restores every bit", (CopyToLive, "finish"), nothing, ""),
    ],
)
def test_it_fails_when_what_it_checks_is_broken(
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    where: tuple[type, str],
    broken: Callable[..., object],
    reason: str,
) -> None:
    monkeypatch.setattr(*where, broken)
    check = only(monkeypatch, name)
    assert check.outcome is Outcome.FAILED
    assert reason in check.reason
    assert "planted" not in check.reason


def test_ranks_that_do_not_meet_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    fork_ranks(monkeypatch)
    monkeypatch.setattr(RankSync, "_reduce", nothing)
    line = only(monkeypatch, "two ranks agree").line()
    assert line.startswith("FAIL  two ranks agree: rank 0 applied step 8")


def only(monkeypatch: pytest.MonkeyPatch, name: str) -> SelfTestResult:
    """Make one check of the self-test."""
    monkeypatch.setattr(run, "measure_cost", nothing)
    monkeypatch.setattr(run, "CHECKS", {name: CHECKS[name]})
    return run.run_selftest("cpu").checks[0]


def test_json_and_exit_code_1(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(device: torch.device, folder: Path) -> str:
        raise ValueError("no such\nthing")

    def costless(device: torch.device, folder: Path) -> Cost:
        raise RuntimeError("out of memory")

    monkeypatch.setattr("trimtab.selftest.run.CHECKS", {"a check": broken})
    monkeypatch.setattr("trimtab.selftest.run.measure_cost", costless)
    result = CliRunner().invoke(app, ["selftest", "--device", "cpu", "--json"])
    shown = json.loads(result.output)
    assert result.exit_code == 1
    assert (shown["passed"], shown["device"], shown["cost"]) == (False, "cpu", None)
    (check,) = shown["checks"]
    assert (check["name"], check["outcome"]) == ("a check", "failed")
    assert check["reason"] == "ValueError: no such thing"


def test_the_self_test_prints_what_the_page_shows() -> None:
    shown = re.search(r"\$ trimtab selftest\n(.*?)```", GPU_PAGE.read_text(encoding="utf-8"), re.S)
    assert shown
    *lines, cost, inside, last, send, _ = shown[1].splitlines()
    assert [line.split(":")[0].removeprefix("pass  ") for line in lines] == list(CHECKS)
    assert cost.startswith("cost  a step of ")
    assert inside.startswith("cost  inside the guard: ")
    for mode, launches in PAPER_LAUNCHES.items():
        (reads,) = (line for line in lines if line.startswith(f"pass  {mode} reads"))
        assert f"on paper {launches} on a GPU" in reads, "run scripts/bench device_work"
    assert last.startswith(f"{len(CHECKS)} passed, 0 failed")
    assert send.startswith("To send back")


COUNT = """
import sys
from tests.kit.device_work import PAGE, count, table
from trimtab.selftest.promises import PAPER_LAUNCHES
found, page = count(sys.argv[1:]), PAGE.read_text(encoding="utf-8")
assert table(found.kinds).split("|\\n", 2)[2] in page, f"scripts/bench device_work: {found.kinds}"
assert found.launches.items() <= PAPER_LAUNCHES.items(), f"scripts/bench device_work: {found}"
"""


@pytest.mark.slow
@pytest.mark.skipif(not torch.__version__.startswith("2.13."), reason="counted with torch 2.13")
def test_page_and_self_test_have_what_is_counted() -> None:
    """In a new process: torch registers a device for ever, and before the first backward pass."""
    command = [sys.executable, "-c", COUNT, *MODES]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert not done.returncode, done.stderr[-2000:]
