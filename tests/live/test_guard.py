"""The guard as its user meets it."""

import signal
import subprocess
import textwrap
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.kit import forked
from tests.kit.observing import observe
from tests.kit.tiny import EVERY_10, adamw, batches, journal_of, loss_of, make_model
from tests.kit.user_loop import column, events_of, losses, sgd, take_step, warnings_of, watching
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

import trimtab
from trimtab.core.config import Config, LiveConfig
from trimtab.core.errors import ConfigError
from trimtab.journal import RunDirectory, read_journal
from trimtab.live.guard import Guard


def flat(tensors: Iterable[torch.Tensor]) -> torch.Tensor:
    return torch.cat([tensor.detach().reshape(-1) for tensor in tensors])


def total_norm(model: torch.nn.Module) -> float:
    return float(flat(p.grad for p in model.parameters() if p.grad is not None).norm())


@pytest.mark.parametrize("lag", [0, 2, 5])
def test_every_step_arrives_whatever_the_lag(lag: int, tmp_path: Path) -> None:
    true = []
    with watching(tmp_path, config=Config(live=LiveConfig(lag_steps=lag))) as run:
        for batch in batches(23):
            true.append(run.step(batch, clip=0.5).item())
            if len(true) == 10:  # the journal is behind by the lag and no more
                assert run.guard._monitor.recorder.num_records == 10 - lag
    assert journal_of(tmp_path).step.tolist() == list(range(23))
    np.testing.assert_allclose(losses(tmp_path), true, rtol=1e-6)
    assert run.guard.run_dir == tmp_path
    assert len(trimtab.diagnose(run.guard).block) == 23


def test_telemetry_has_the_true_numbers(tmp_path: Path) -> None:
    config = Config(live=LiveConfig(telemetry_every=1))
    truth: list[dict[str, float]] = []
    with watching(tmp_path, config=config) as run:
        model, optimizer = run.model, run.optimizer
        for batch in batches(12):
            before = flat(model.parameters())
            loss = loss_of(model, batch)
            run.guard.record(loss=loss)
            loss.backward()
            grads = flat(p.grad for p in model.parameters())
            optimizer.step()
            moved = flat(model.parameters()) - before
            state = [optimizer.state[p] for p in model.parameters()]
            first = flat(s["exp_avg"] for s in state)
            second = flat(s["exp_avg_sq"] for s in state)
            scale = (second / (1 - 0.999 ** (len(truth) + 1))).sqrt() + 1e-8
            truth.append(
                {
                    "update_norm": float(moved.norm()),
                    "update_per_lr": float(moved.norm()) / 1e-2,
                    "param_norm": float(flat(model.parameters()).norm()),
                    "param_norm/embedding": float(model.embed.weight.detach().norm()),
                    "adam_m_norm": float(first.norm()),
                    "adam_v_norm": float(second.norm()),
                    "adam_step": float(len(truth) + 1),
                    "grad_momentum_cosine": float(torch.cosine_similarity(grads, first, dim=0)),
                    "grad_to_v_rms": float((grads / scale).square().mean().sqrt()),
                    "grad_norm/head": float(model.head.weight.grad.norm()),
                    "zero_grad_share": float((grads == 0).float().mean()),
                }
            )
            optimizer.zero_grad()
    block = journal_of(tmp_path)
    for row, expected in enumerate(truth):
        for name, value in expected.items():
            found = block.column(name).values[row]
            # The update is recomputed from the state: decay acts on the new weights there.
            tolerance = 2e-3 if "update" in name else 1e-4
            assert found == pytest.approx(value, rel=tolerance, abs=1e-6), (name, row)


def test_activations_are_those_of_the_blocks(tmp_path: Path) -> None:
    """Also where the forward pass of another block is computed again in backward."""
    seen: list[float] = []
    with watching(tmp_path, config=EVERY_10) as run:
        first, second = run.model.blocks
        forward = first.forward
        first.forward = lambda x: checkpoint(forward, x, use_reentrant=False)
        second.register_forward_hook(
            lambda module, inputs, output: seen.append(
                float(output.detach().square().mean().sqrt())
            )
        )
        run.train(11)
    block = journal_of(tmp_path)
    assert block.column("activation_rms/blocks.0").present[0]
    values = block.column("activation_rms/blocks.1")
    assert np.flatnonzero(values.present).tolist() == [0, 10]
    assert values.values[[0, 10]] == pytest.approx([seen[0], seen[10]], rel=1e-5)


def test_hooks_that_do_not_fire_are_told_with_the_cure(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    torch._dynamo.reset()
    with watching(tmp_path / "unused", enabled=False) as bare:
        compiled: Any = torch.compile(bare.model, backend="aot_eager")
        compiled(batches(1)[0][:, :-1])  # compiled before the guard came
    with watching(tmp_path, model=bare.model) as run:
        for batch in batches(12):
            take_step(run.guard, run.optimizer, loss_of(compiled, batch))
    told = [record.getMessage() for record in caplog.records]
    assert len([text for text in told if "before torch.compile" in text]) == 1
    block = journal_of(tmp_path)
    assert not block.column("activation_rms/blocks.0").recorded
    assert block.column("param_norm").recorded


def test_steps_that_nobody_recorded_are_left_alone_and_told(tmp_path: Path) -> None:
    with watching(tmp_path) as run:
        # DCP calls `optimizer.step()` once, with zero gradients, to have a state.
        get_optimizer_state_dict(run.model, run.optimizer)
        run.guard.record(eval_loss=3.5)  # an evaluation between steps is no step
        run.optimizer.step()
        run.train(5)
        run.optimizer.step()
    block = journal_of(tmp_path)
    assert len(block) == 5
    assert block.column("eval_loss").values[0] == 3.5
    assert [event.kind for event in block.events] == ["unobserved step"]


@pytest.mark.parametrize("mode", ["observe", "protect"])
def test_a_model_in_double_precision_is_watched_like_any_other(mode: str, tmp_path: Path) -> None:
    norms = []
    with watching(tmp_path, mode, config=EVERY_10) as run:
        run.model.double()
        for batch in batches(12):
            loss = run.model(batch[:, :-1]).square().mean()
            run.guard.record(loss=loss)
            loss.backward()
            norms.append(total_norm(run.model))
            run.optimizer.step()
            run.optimizer.zero_grad()
    block = journal_of(tmp_path)
    np.testing.assert_allclose(block.column("grad_norm").values, norms, rtol=1e-5)
    assert block.column("activation_rms/blocks.1").present[[0, 10]].all()
    assert block.column("adam_v_norm").present[[0, 10]].all()


@pytest.mark.parametrize("by_name", [True, False])
def test_a_closure_is_watched_behind_itself(by_name: bool, tmp_path: Path) -> None:
    norms = []
    with watching(tmp_path, make=sgd) as run:
        for batch in batches(5):

            def closure(batch: torch.Tensor = batch) -> torch.Tensor:
                run.optimizer.zero_grad()
                loss = loss_of(run.model, batch)
                run.guard.record(loss=loss)
                loss.backward()
                norms.append(total_norm(run.model))
                return loss.detach()

            run.optimizer.step(closure=closure) if by_name else run.optimizer.step(closure)
    np.testing.assert_allclose(column(tmp_path, "grad_norm"), norms, rtol=1e-5)


def test_a_loss_is_journalled_as_what_it_was_and_weighed_by_its_tokens(tmp_path: Path) -> None:
    with watching(tmp_path) as run:
        for factor in (1.0, float("nan"), float("inf")):
            run.guard.record(loss=torch.tensor(2.0) * factor, tokens=100)
            run.optimizer.step()
        run.guard.record(loss=2.0, tokens=100)
        run.guard.record(loss=torch.tensor(4.0), tokens=torch.tensor(300))
        run.optimizer.step()
    loss = losses(tmp_path)
    assert loss[0] == 2.0
    assert np.isnan(loss[1])
    assert np.isposinf(loss[2])
    assert loss[3] == pytest.approx(3.5)
    assert column(tmp_path, "tokens")[3] == 400


def test_a_step_whose_loss_or_tokens_cannot_be_read_lacks_only_those(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    odd: dict[int, dict[str, Any]] = {
        1: {"loss": "abc", "tokens": 36},
        3: {"tokens": "many"},
        4: {"tokens": -5},
        5: {"tokens": float("nan")},
        6: {"loss": "abc", "tokens": 36},
    }
    with watching(tmp_path) as run:
        run.train(8, record=lambda step, loss: {"tokens": 36, **odd.get(step, {})})
    block = journal_of(tmp_path)
    assert block.step.tolist() == list(range(8))
    assert np.flatnonzero(~block.column("loss").present).tolist() == [1, 6]
    assert np.flatnonzero(~block.column("tokens").present).tolist() == [1, 3, 4, 5, 6]
    assert block.column("grad_norm").present.all()
    assert [sentence for sentence in warnings_of(caplog) if "not a" in sentence] == [
        "trimtab: step 1: loss is not a number but 'abc': it is left out, and the step's tokens "
        "with it",
        "trimtab: step 3: tokens is not a count but 'many': its loss counts, its tokens are not "
        "recorded",
    ]


def test_a_second_guard_of_an_optimizer_is_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with watching(tmp_path / "first") as run:
        second = trimtab.watch(run.model, run.optimizer, run_dir=tmp_path / "second")
        assert "this AdamW is watched already, in " in caplog.text
        second.close()
        caplog.clear()
        run.train(2)
    trimtab.watch(run.model, run.optimizer, run_dir=tmp_path / "third").close()
    assert "watched already" not in caplog.text
    assert len(journal_of(tmp_path / "first")) == 2


@pytest.mark.parametrize("below", ["", "x1"])
def test_a_run_dir_that_cannot_be_a_folder_is_refused(
    below: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "file"
    file.write_text("")
    with pytest.raises(ConfigError, match=r'run_dir ".*" cannot be made: .*file is a file; give a'):
        trimtab.watch(make_model(), sgd(make_model().parameters()), run_dir=file / below)
    assert not caplog.records


def test_a_batch_loss_that_is_no_function_is_refused(tmp_path: Path) -> None:
    wrong = pytest.raises(ConfigError, match="batch_loss must be a function; got int")
    with wrong, watching(tmp_path, "recover", batch_loss=3):
        pass


@pytest.mark.parametrize("none", [0, torch.tensor(0)])
def test_a_micro_batch_without_tokens_has_no_loss(none: Any, tmp_path: Path) -> None:
    # The mean over no tokens is NaN, and a batch in which everything is masked is no fault.
    with watching(tmp_path, "protect") as run:
        for loss, tokens in ((2.0, 3), (float("nan"), none)):
            before = run.model.head.weight.detach().clone()
            loss_of(run.model, batches(1)[0]).backward()
            run.guard.record(loss=float("nan"), tokens=none)
            run.guard.record(loss=loss, tokens=tokens)
            run.optimizer.step()
            run.optimizer.zero_grad()
            assert not torch.equal(before, run.model.head.weight)
    found = journal_of(tmp_path).column("loss")
    assert found.values[0] == 2.0
    assert list(found.present) == [True, False]


def test_a_new_run_in_the_folder_of_another_one_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def told(first: int | None = None) -> list[str]:
        caplog.clear()
        with watching(tmp_path, facts={} if first is None else {"step": first}) as run:
            run.train(6)
        return [said for said in warnings_of(caplog) if "earlier launch" in said]

    assert not told()
    (said,) = told()
    assert "holds 6 steps of an earlier launch, and this one begins at step 0 without a " in said
    assert not told(6)  # it goes on
    assert not told(3)  # the user has loaded a state, as the number says
    assert "holds 12 steps" in told()[0]
    monkeypatch.setenv("TRIMTAB_SUPERVISOR", str(tmp_path))
    assert not told()


def test_a_resume_is_told_and_steps_that_go_back_are_a_new_attempt(tmp_path: Path) -> None:
    for first in (0, 10, 4):
        with watching(tmp_path, facts={"step": first}) as run:
            run.train(10)
    block = journal_of(tmp_path)
    assert block.step.tolist() == [*range(20), *range(4, 14)]
    assert block.attempt.tolist() == [0] * 20 + [1] * 10
    assert len(events_of(tmp_path, "resume")) == 2


class TestEndings:
    def ended(self, run_dir: Path) -> str | None:
        return read_journal(RunDirectory(run_dir)).ended

    @pytest.mark.parametrize(
        ("how", "ended"),
        [
            ("", "end of data"),
            ("break", "left the loop"),
            ("raise", "raised ZeroDivisionError"),
        ],
    )
    def test_the_end_of_a_loop(self, how: str, ended: str, tmp_path: Path) -> None:
        def training() -> None:
            with watching(tmp_path) as run:
                for step in run.guard.steps(batches(3)):
                    run.step(*step)
                    if how == "break":
                        break
                    if how == "raise":
                        raise ZeroDivisionError

        if how == "raise":
            with pytest.raises(ZeroDivisionError):
                training()
        else:
            training()
        assert self.ended(tmp_path) == ended
        assert len(journal_of(tmp_path)) == (1 if how else 3)

    SCRIPT = textwrap.dedent(
        """
        import sys, time
        import torch, trimtab
        model = torch.nn.Linear(4, 4)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        guard = trimtab.watch(model, optimizer, run_dir=sys.argv[1])
        for step in range(1000):
            loss = model(torch.ones(4)).sum()
            guard.record(loss=loss)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            if step == 20:
                print("ready", flush=True)
                if sys.argv[2] == "wait":
                    time.sleep(60)
                break
        """
    )

    def start(self, run_dir: Path, what: str) -> forked.Forked:
        return forked.Forked(["-c", self.SCRIPT, str(run_dir), what], stdout=subprocess.PIPE)

    def test_sigterm(self, tmp_path: Path) -> None:
        with self.start(tmp_path, "wait") as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            process.terminate()
            assert process.wait(20) == -signal.SIGTERM
        assert self.ended(tmp_path) == "SIGTERM"
        assert len(journal_of(tmp_path)) == 21

    def test_a_guard_that_is_never_closed(self, tmp_path: Path) -> None:
        with self.start(tmp_path, "go") as process:
            assert process.wait(30) == 0
        assert self.ended(tmp_path) == "the program ended without closing the guard"
        assert len(journal_of(tmp_path)) == 21


def test_a_loss_that_leaves_the_one_its_user_knows_is_told(tmp_path: Path) -> None:
    with watching(tmp_path, facts={"seed": 0}) as run:
        for step, batch in enumerate(batches(120)):
            loss = loss_of(run.model, batch)
            known = loss.item() - (0.2 if step >= 100 else 0.0)
            take_step(run.guard, run.optimizer, loss, clip=1.0, reference_loss=known)
    first = observe(tmp_path)[0]
    assert first.symptoms == ("left its reference",)
    assert 100 <= first.onset.step <= 105


def test_steps_go_on_counting_when_the_guard_has_stepped_aside(tmp_path: Path) -> None:
    numbers = []
    with watching(tmp_path) as run:
        for step in run.guard.steps(batches(10)):
            numbers.append(step.number)
            if step.number == 4:
                run.guard._monitor.shields.numbers.is_down = True
            run.step(*step)
    assert numbers == list(range(10))


def test_a_step_that_the_scaler_skipped_keeps_its_own_number_and_batch(tmp_path: Path) -> None:
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**40)
    seen = []
    with watching(tmp_path, make=torch.optim.AdamW, state={"scaler": scaler}) as run:
        for step in run.guard.steps(batches(40)):
            (batch,) = step
            with torch.autocast("cpu", torch.float16):
                loss = loss_of(run.model, batch)
            run.guard.record(loss=loss)
            scaler.scale(loss).backward()
            seen.append((step.number, float(zlib.crc32(batch.numpy().tobytes()))))
            scaler.step(run.optimizer)
            scaler.update()
            run.optimizer.zero_grad()
    assert len(events_of(tmp_path, "step not applied")) >= 3
    prints = column(tmp_path, "fingerprint")
    assert list(zip(journal_of(tmp_path).step.tolist(), prints, strict=True)) == seen


class NoOperation(TorchDispatchMode):
    """Lets no operation of torch happen."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise AssertionError(func)


def watched(folder: Path, mode: str = "observe") -> Guard:
    """A guard that has seen three steps."""
    model = make_model()
    (optimizer,) = adamw(fused=True)(model)
    guard = trimtab.watch(model, optimizer, run_dir=folder, mode=mode)
    assert isinstance(guard, Guard)
    for batch in batches(3):
        take_step(guard, optimizer, loss_of(model, batch))
    return guard


def test_a_guard_says_what_it_watches_without_an_operation_of_torch(tmp_path: Path) -> None:
    guard = watched(tmp_path / "<b>run", "protect")
    with NoOperation():  # type: ignore[no-untyped-call]
        text, html = repr(guard), guard._repr_html_()
    assert text.startswith("<Guard protects AdamW (")
    assert "1 rank): step 3 is next; " in text
    assert text.endswith(f"{tmp_path / '<b>run' / 'trimtab'}>")
    assert html is not None
    assert "trimtab protects AdamW (" in html
    assert "step 3 is next" in html
    assert "not judged yet" in html
    assert "<b>" not in html
    guard.close()
    assert ": closed; 3 steps recorded, not judged yet; " in repr(guard)
    assert "closed; 3 steps recorded" in (guard._repr_html_() or "")


def test_a_view_that_fails_raises_nothing_and_leaves_the_guard_in_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with watched(tmp_path) as guard:
        with monkeypatch.context() as broken:
            broken.setattr(type(guard._monitor.recorder), "summary", lambda self: 1 / 0)
            assert repr(guard).startswith("<trimtab.live.guard.Guard object at ")
            assert guard._repr_html_() is None
        assert guard._monitor.is_watching
        assert "FAILED: views of the guard" in (guard._repr_html_() or "")


def test_no_guard_says_so(tmp_path: Path) -> None:
    model = make_model()
    (optimizer,) = adamw(fused=True)(model)
    guard = trimtab.watch(model, optimizer, run_dir=tmp_path, enabled=False)
    assert repr(guard) == "<NoGuard: this run is not watched>"
