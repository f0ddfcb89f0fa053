"""A rollback that a person asks for: the next launch does all of it, or says why it does not."""

import logging
import os
import shutil
import signal
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.kit.observing import observe
from tests.kit.tiny import batches, journal_of, loss_of, make_model
from tests.kit.user_loop import take_step
from torch.nn.parallel import DistributedDataParallel
from typer.testing import CliRunner

import trimtab
from trimtab.cli.main import app
from trimtab.core.errors import ConfigError, RestoreError
from trimtab.journal import AUDIT_EVENT, RunDirectory
from trimtab.journal.checkpoints.index import CheckpointIndex, Verdict
from trimtab.journal.checkpoints.manifest import to_checked_json
from trimtab.journal.rollback import FILE, Conditions, Rollback
from trimtab.lab.trainer.local_ranks import run_ranks
from trimtab.live.protect.rate_scale import RateScale

DATA = batches(80)
FREE = asdict(Conditions())
PLAIN = {
    "step": 10,
    "checkpoint": "step-00000010",
    "digest": "",
    "anyway": False,
    "conditions": FREE,
    "earlier": FREE,
    "is_taken": False,
}


def ask(run: Path, *options: object) -> str:
    arguments = ["rollback", str(run), *map(str, options), "--yes"]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    return result.output


def launch(
    run: Path,
    until: int,
    *,
    mode: str = "protect",
    resumes: bool = True,
    each: Callable[[Any, int], None] = lambda guard, step: None,
) -> list[torch.Tensor]:
    """Train a run up to a step, from where it resumes; it saves every 10 steps."""
    torch.manual_seed(0)
    model = make_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, fused=True)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.99)
    checkpoints = trimtab.Checkpoints(
        model, optimizer, scheduler=schedule, run_dir=run, every_steps=10, keep=9
    )
    first = checkpoints.resume().step if resumes else 0
    guard = trimtab.watch(
        *(model, optimizer), run_dir=run, mode=mode, checkpoints=checkpoints, observer=False
    )
    with guard:
        for step in guard.steps(DATA[:until]):
            each(guard, step.number)
            (batch,) = step
            take_step(guard, optimizer, loss_of(model, batch))
            schedule.step()
    assert first == 0 or step.number == until - 1
    return [parameter.detach().clone() for parameter in model.parameters()]


def steps_of(run: Path) -> list[int]:
    steps: list[int] = journal_of(run).step.tolist()
    return steps


def findings(run: Path) -> list[str]:
    events = [e for e in journal_of(run).events if e.kind == AUDIT_EVENT]
    return [sentence for event in events for sentence in event.facts["findings"]]


def test_the_next_launch_does_all_of_it_and_later_ones_keep_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    launch(tmp_path, 45)
    options = ("--to", 25, "--skip", "30:33", "--lr-factor", 0.5, "--without-source", "web")
    price = ask(tmp_path, *options)
    assert "step-00000020, unproven" in price
    assert "lost     25 updates" in price
    before = journal_of(tmp_path)
    left_out: list[tuple[str, ...]] = []
    with caplog.at_level(logging.INFO, "trimtab"):
        launch(tmp_path, 40, each=lambda guard, step: left_out.append(guard.without_sources))
    assert "`trimtab rollback` asks for it" in caplog.text
    assert set(left_out) == {("web",)}
    assert findings(tmp_path) == []
    block = journal_of(tmp_path)
    again = block[len(before) :]
    assert again.step.tolist() == again.data_position.tolist() == list(range(20, 40))
    assert again.step[again.column("discarded").values == 1.0].tolist() == [30, 31, 32]
    planned = before.column("lr").values[20:40]
    assert again.column("lr").values.tolist() == (planned * 0.5).tolist()

    assert observe(tmp_path) == ()  # neither the change of the rate nor what was discarded

    # It is taken once: the next launch goes on from the newest checkpoint, with the same changes.
    launch(tmp_path, 50)
    third = journal_of(tmp_path)[len(block) :]
    assert third.step.tolist() == list(range(40, 50))
    assert np.allclose(third.column("lr").values, 0.5e-2 * 0.99 ** np.arange(40, 50))
    assert findings(tmp_path) == []
    # What is not named stays; a factor of 1 ends it.
    ask(tmp_path, "--to", 20, "--lr-factor", 1)
    request = Rollback.read(RunDirectory(tmp_path).home)
    assert request is not None
    assert request.conditions.lr_factor == 1.0
    assert len(request.conditions.bad_data) == 3
    assert request.conditions.without_sources == ("web",)


def test_a_rollback_alone_gives_the_bits_of_the_run_that_never_left(tmp_path: Path) -> None:
    whole = launch(tmp_path, 30)
    ask(tmp_path, "--to", 10)
    for one, other in zip(whole, launch(tmp_path, 30), strict=True):
        assert torch.equal(one, other)


def request_of(run: Path) -> Rollback | None:
    return Rollback.read(RunDirectory(run).home)


def refused(run: Path, *options: object) -> str:
    """Return what the command says, and that it has asked for nothing."""
    before = request_of(run)
    result = CliRunner().invoke(app, ["rollback", str(run), *map(str, options), "--yes"])
    assert result.exit_code in (2, 3), result.output
    assert request_of(run) == before
    return result.output


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("trained")
    launch(run, 25)
    return run


@pytest.fixture
def run(trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run of 25 steps with checkpoints at 10 and 20, which no observer judges (it takes 1 s)."""
    monkeypatch.setattr("trimtab.state.checkpoints.run_checkpoints.judge_to_end", lambda run: None)
    return Path(shutil.copytree(trained, tmp_path / "run"))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--to", 5), "no checkpoint is from step 5 or before; there are: 10, 20"),
        (("--to", 999), "the run has not come to step 999: its next one is 25"),
        (("--to", 10, "--skip", "17:14"), "A before B"),
        (("--to", 10, "--skip", "4:9"), "after 10"),
        (("--to", 10, "--skip", "../x"), "takes A:B"),
        (("--to", 10, "--skip", "40:50"), "does not say which data"),
        (("--to", 10, "--lr-factor", 0), "above 0, up to 1"),
        (("--to", 10, "--lr-factor", "nan"), "above 0, up to 1"),
        (("--to", 10, "--lr-factor", -0.5), "above 0, up to 1"),
        (("--to", 10, "--lr-factor", "inf"), "above 0, up to 1"),
        (("--to", 10, "--without-source", ""), "has no name"),
        ((), "the verdict names no checkpoint; name a step with --to"),
    ],
)
def test_what_cannot_be_meant_is_refused(run: Path, options: tuple[object, ...], said: str) -> None:
    assert said in " ".join(refused(run, *options).split())


def test_nothing_is_asked_for_without_a_yes(run: Path) -> None:
    result = CliRunner().invoke(app, ["rollback", str(run), "--to", "10"], input="\n")
    assert result.exit_code == 1
    assert "lost     15 updates" in result.output
    assert request_of(run) is None


def test_a_bad_checkpoint_is_loaded_only_anyway(run: Path) -> None:
    index = CheckpointIndex(RunDirectory(run).home)
    index.update(
        [replace(index.entries[1], verdict=Verdict.BAD, damage="planted", reason="planted")]
    )
    assert "--to 10 is sound" in refused(run, "--to", 20)
    ask(run, "--to", 20, "--anyway")
    launch(run, 24)
    assert steps_of(run)[25:] == [20, 21, 22, 23]


def test_a_torn_checkpoint_is_refused_before_the_launch(run: Path) -> None:
    torn = next((RunDirectory(run).home / "checkpoints" / "step-00000020").glob("*.distcp"))
    torn.write_bytes(torn.read_bytes()[:100])
    for options in ((), ("--anyway",)):
        assert "the checkpoint of step 20 is damaged" in refused(run, "--to", 20, *options)
    ask(run, "--to", 10)


def test_a_checkpoint_that_turns_bad_or_goes_meanwhile_is_not_loaded(run: Path) -> None:
    ask(run, "--to", 20)
    index = CheckpointIndex(RunDirectory(run).home)
    index.update(
        [replace(index.entries[1], verdict=Verdict.BAD, damage="planted", reason="planted")]
    )
    with pytest.raises(RestoreError, match="is bad: planted; ask for another one"):
        launch(run, 24)
    index.remove(index.entries[1])
    with pytest.raises(RestoreError, match="is gone"):
        launch(run, 24)
    ask(run, "--to", 20)  # the newest up to there, in place of the request that waits
    launch(run, 14)
    assert steps_of(run)[25:] == [10, 11, 12, 13]


def test_a_request_for_another_run_loads_nothing(run: Path, tmp_path: Path) -> None:
    launch(tmp_path / "other", 25)
    ask(tmp_path / "other", "--to", 10)
    shutil.copy(RunDirectory(tmp_path / "other").home / FILE, RunDirectory(run).home / FILE)
    with pytest.raises(RestoreError, match="a different checkpoint now"):
        launch(run, 24)


@pytest.mark.parametrize(
    "content",
    [
        "{",
        "null",
        '{"step": 10, "checksum": "0"}',
        to_checked_json({"step": 10, "is_taken": False}),
        to_checked_json({**PLAIN, "conditions": {**FREE, "lr_factor": 0.0}}),
        to_checked_json({**PLAIN, "conditions": {**FREE, "lr_factor": 5.0}}),
        to_checked_json({**PLAIN, "conditions": {**FREE, "bad_data": [[1, 2, 3]]}}),
        to_checked_json({**PLAIN, "conditions": {**FREE, "bad_data": [["../x", None]]}}),
        to_checked_json({**PLAIN, "step": "10"}),
    ],
)
def test_a_damaged_request_is_not_read(tmp_path: Path, content: str) -> None:
    (tmp_path / FILE).write_text(content)
    with pytest.raises(RestoreError, match="cannot be read"):
        Rollback.read(tmp_path)


def test_a_damaged_request_changes_nothing_and_is_said(
    run: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (RunDirectory(run).home / FILE).write_text("{")
    launch(run, 22)
    assert steps_of(run)[25:] == [20, 21]
    assert caplog.text.count("no rollback is made") == 2  # by the resume, and by the guard
    ask(run, "--to", 10)  # it is replaced


def test_no_path_leads_out_of_the_run(run: Path, tmp_path: Path) -> None:
    outside = Path(shutil.copytree(run, tmp_path / "outside")) / "trimtab/checkpoints/step-00000010"
    ask(run, "--to", 10)
    request = request_of(run)
    assert request is not None
    replace(request, checkpoint=str(outside)).write(RunDirectory(run).home)
    with pytest.raises(RestoreError, match="is gone"):
        launch(run, 24)
    (RunDirectory(run).home / FILE).unlink()
    (RunDirectory(run).home / FILE).symlink_to(tmp_path / "elsewhere")
    ask(run, "--to", 10)
    assert not (tmp_path / "elsewhere").exists()


def test_a_launch_that_is_killed_before_its_first_record_leaves_the_request(run: Path) -> None:
    ask(run, "--to", 10, "--lr-factor", 0.5)
    pid = os.fork()
    if pid == 0:
        launch(run, 24, each=lambda guard, step: os.kill(os.getpid(), signal.SIGKILL))
    os.waitpid(pid, 0)
    launch(run, 14)
    assert steps_of(run)[25:] == [10, 11, 12, 13]


def test_a_launch_that_is_killed_after_it_does_not_resume_what_was_given_up(run: Path) -> None:
    ask(run, "--to", 10)

    def kill(guard: Any, step: int) -> None:
        if step == 15:
            os.kill(os.getpid(), signal.SIGKILL)

    pid = os.fork()
    if pid == 0:
        launch(run, 24, each=kill)
    os.waitpid(pid, 0)
    request = request_of(run)
    assert request is not None
    assert request.is_taken
    again = len(steps_of(run))
    launch(run, 14)
    assert steps_of(run)[again:] == [10, 11, 12, 13]


def test_the_last_of_two_requests_counts(run: Path) -> None:
    ask(run, "--to", 20, "--lr-factor", 0.25, "--skip", "22:24")
    ask(run, "--to", 10)
    launch(run, 14)
    assert steps_of(run)[25:] == [10, 11, 12, 13]
    assert journal_of(run).column("lr").values[-1] == pytest.approx(1e-2 * 0.99**13)


def test_a_launch_that_begins_elsewhere_says_what_to_load(
    run: Path, caplog: pytest.LogCaptureFixture
) -> None:
    ask(run, "--to", 10, "--lr-factor", 0.5)
    launch(run, 5, resumes=False)
    assert "a rollback to step 10 waits, and this launch begins at step 0: load " in caplog.text
    assert "trimtab/checkpoints/step-00000010" in caplog.text
    assert any("step is 0, saved was 10" in sentence for sentence in findings(run))
    assert journal_of(run).column("lr").values[25] == 1e-2
    request = request_of(run)
    assert request is not None
    assert not request.is_taken


def test_observe_changes_no_update_and_says_so(run: Path) -> None:
    ask(run, "--to", 10, "--lr-factor", 0.5)
    with pytest.raises(ConfigError, match="mode='protect'"):
        launch(run, 14, mode="observe")
    ask(run, "--to", 10, "--lr-factor", 1)
    launch(run, 14, mode="observe")
    assert steps_of(run)[25:] == [10, 11, 12, 13]


@pytest.mark.parametrize("is_tensor", [False, True])
def test_a_factor_is_a_lower_schedule_bit_by_bit(is_tensor: bool) -> None:
    """Also a chained schedule, which goes on from the rate that it finds in the group."""
    ends = []
    for factor in (1.0, 0.5):
        model, rates = make_model(), RateScale(factor)
        rate: Any = 1e-2 * 0.5 / factor
        rate = torch.tensor(rate) if is_tensor else rate
        optimizer = torch.optim.AdamW(model.parameters(), lr=rate, fused=True)
        schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
        optimizer.register_step_pre_hook(lambda one, *_, rates=rates: rates.before(one))
        optimizer.register_step_post_hook(lambda one, *_, rates=rates: rates.after(one))
        for batch in DATA[:9]:
            torch.manual_seed(0)
            loss_of(model, batch).backward()
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
        ends.append([parameter.detach() for parameter in model.parameters()])
    assert all(torch.equal(one, other) for one, other in zip(*ends, strict=True))


def test_a_source_that_nobody_leaves_out_is_said(
    run: Path, caplog: pytest.LogCaptureFixture
) -> None:
    ask(run, "--to", 10, "--without-source", "web")
    launch(run, 14)
    assert "the rollback leaves out web, and nothing here does" in caplog.text


def on_a_rank(rank: int, run: Path) -> tuple[list[float], float, tuple[str, ...], list[Any]]:
    """Return the weights, the factor, the sources and the rates that this rank has trained with."""
    torch.manual_seed(0)
    model = DistributedDataParallel(make_model())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    checkpoints = trimtab.Checkpoints(model, optimizer, run_dir=run, every_steps=4)
    checkpoints.resume()
    seen: list[float] = []
    guard = trimtab.watch(
        *(model, optimizer), run_dir=run, mode="protect", checkpoints=checkpoints, observer=False
    )
    with guard:
        rates = guard._monitor.rollback.rates  # type: ignore[union-attr]
        for step in guard.steps(DATA[rank:20:2]):
            (batch,) = step
            take_step(guard, optimizer, loss_of(model, batch))
            seen.append(rates.applied)
        sources = guard.without_sources
    weights = [float(parameter.detach().sum()) for parameter in model.parameters()]
    return weights, rates.factor, sources, seen


def test_all_ranks_hear_of_it_from_the_first(tmp_path: Path) -> None:
    run_ranks(on_a_rank, 2, tmp_path)
    ask(tmp_path, "--to", 4, "--skip", "6:8", "--lr-factor", 0.5, "--without-source", "web")
    one, other = run_ranks(on_a_rank, 2, tmp_path)
    assert one == other
    assert one[1:] == (0.5, ("web",), [0.5] * 6)
    again = journal_of(tmp_path)[10:]
    assert again.step[again.column("discarded").values == 1.0].tolist() == [6, 7]


def test_a_guard_that_fails_leaves_the_rate_lowered(run: Path) -> None:
    """The rest of the run is trained as the person has asked, whatever of trimtab is out."""
    ask(run, "--to", 10, "--lr-factor", 0.5)
    used: list[float] = []

    def fail(guard: Any, step: int) -> None:
        if step == 12:
            guard._monitor.meter.reset = None  # the next call of it raises
        if step > 12:
            used.append(guard._monitor.rollback.rates.applied)
            guard._monitor.rollback.rates.applied = 1.0

    launch(run, 18, each=fail)
    assert used == [0.5] * 5
