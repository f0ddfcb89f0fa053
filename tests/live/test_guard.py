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
from tests.kit.tiny import (
    EVERY_10,
    Setup,
    adamw,
    batches,
    journal_of,
    loss_of,
    make_model,
    muon_and_adamw,
    sgd,
    train,
)
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict
from torch.utils.checkpoint import checkpoint

import trimtab
from trimtab.core.config import Config, LiveConfig
from trimtab.journal import RunDirectory, read_journal
from trimtab.journal.news import read_news


def loop(guard: Any, model: torch.nn.Module, optimizer: Any, data: list[torch.Tensor]) -> None:
    for batch in data:
        loss = loss_of(model, batch)
        guard.record(loss=loss, tokens=batch.numel())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def build(optimizers: Any = None) -> tuple[Any, Any]:
    model = make_model()
    return model, (optimizers or adamw(fused=True))(model)[0]


def flat(tensors: Iterable[torch.Tensor]) -> torch.Tensor:
    return torch.cat([tensor.detach().reshape(-1) for tensor in tensors])


def total_norm(model: torch.nn.Module) -> float:
    return float(flat(p.grad for p in model.parameters() if p.grad is not None).norm())


def test_a_guard_knows_where_its_run_is(tmp_path: Path) -> None:
    model, optimizer = build()
    with trimtab.watch(model, optimizer, run_dir=tmp_path) as guard:
        loop(guard, model, optimizer, batches(5))
    assert guard.run_dir == tmp_path
    assert len(trimtab.diagnose(guard).block) == 5


@pytest.mark.parametrize("lag", [0, 1, 2, 5])
def test_every_step_arrives_whatever_the_lag(lag: int, tmp_path: Path) -> None:
    config = Config(live=LiveConfig(lag_steps=lag))
    outcome = train(Setup(adamw(fused=True), steps=23, guard_clips=True), tmp_path, config=config)
    block = journal_of(tmp_path)
    assert block.step.tolist() == list(range(23))
    np.testing.assert_allclose(block.column("loss").values, outcome.losses, rtol=1e-6)


def test_the_journal_is_behind_by_the_lag_and_no_more(tmp_path: Path) -> None:
    model, optimizer = build()
    with trimtab.watch(model, optimizer, run_dir=tmp_path) as guard:
        loop(guard, model, optimizer, batches(10))
        recorder: Any = guard._monitor.recorder  # type: ignore[union-attr]
        assert recorder.journal.append(99, {}) == 8  # ticks 0 to 7 are taken by steps 0 to 7


def test_telemetry_has_the_true_numbers(tmp_path: Path) -> None:
    model, optimizer = build()
    config = Config(live=LiveConfig(telemetry_every=1))
    truth: list[dict[str, float]] = []
    with trimtab.watch(model, optimizer, run_dir=tmp_path, config=config) as guard:
        for batch in batches(12):
            before = flat(model.parameters())
            loss = loss_of(model, batch)
            guard.record(loss=loss)
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
    model, optimizer = build()
    seen: list[float] = []
    model.blocks[1].register_forward_hook(
        lambda module, inputs, output: seen.append(float(output.detach().square().mean().sqrt()))
    )
    with trimtab.watch(model, optimizer, run_dir=tmp_path, config=EVERY_10) as guard:
        loop(guard, model, optimizer, batches(11))
    column = journal_of(tmp_path).column("activation_rms/blocks.1")
    assert np.flatnonzero(column.present).tolist() == [0, 10]
    assert column.values[[0, 10]] == pytest.approx([seen[0], seen[10]], rel=1e-5)


def test_checkpointing_does_not_disturb_the_activations(tmp_path: Path) -> None:
    model, optimizer = build()
    first = model.blocks[0].forward
    model.blocks[0].forward = lambda x: checkpoint(first, x, use_reentrant=False)
    with trimtab.watch(model, optimizer, run_dir=tmp_path) as guard:
        loop(guard, model, optimizer, batches(3))
    assert journal_of(tmp_path).column("activation_rms/blocks.0").present[0]


def test_hooks_that_do_not_fire_are_told_with_the_cure(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    torch._dynamo.reset()
    model, optimizer = build()
    compiled: Any = torch.compile(model, backend="aot_eager")
    compiled(batches(1)[0][:, :-1])  # compiled before the guard came
    with trimtab.watch(model, optimizer, run_dir=tmp_path) as guard:
        loop(guard, compiled, optimizer, batches(12))
    told = [record.getMessage() for record in caplog.records]
    assert len([text for text in told if "before torch.compile" in text]) == 1
    block = journal_of(tmp_path)
    assert not block.column("activation_rms/blocks.0").recorded
    assert block.column("param_norm").recorded


def test_a_step_that_nobody_recorded_is_left_alone_and_told(tmp_path: Path) -> None:
    model, optimizer = build()
    with trimtab.watch(model, optimizer, run_dir=tmp_path) as guard:
        optimizer.step()
        loop(guard, model, optimizer, batches(5))
        optimizer.step()
    block = journal_of(tmp_path)
    assert len(block) == 5
    assert [event.kind for event in block.events] == ["unobserved step"]


def test_the_step_that_dcp_makes_to_have_a_state_is_left_alone(tmp_path: Path) -> None:
    # Its `get_optimizer_state_dict` calls `optimizer.step()` once, with zero gradients.
    model, optimizer = build()
    with trimtab.watch(model, optimizer, run_dir=tmp_path) as guard:
        get_optimizer_state_dict(model, optimizer)
        loop(guard, model, optimizer, batches(5))
    block = journal_of(tmp_path)
    assert len(block) == 5
    assert "unobserved step" in [event.kind for event in block.events]


def test_accelerate_prepares_what_we_watch(tmp_path: Path) -> None:
    accelerate = pytest.importorskip("accelerate")
    accelerator = accelerate.Accelerator(cpu=True)
    model, optimizer = accelerator.prepare(*build())
    with trimtab.watch(model, optimizer, run_dir=tmp_path) as guard:
        for batch in batches(6):
            loss = loss_of(model, batch)
            guard.record(loss=loss)
            accelerator.backward(loss)
            norm = accelerator.clip_grad_norm_(model.parameters(), 0.1)
            guard.record(grad_norm=norm)
            optimizer.step()
            optimizer.zero_grad()
    block = journal_of(tmp_path)
    assert len(block) == 6
    assert (block.column("grad_norm").values > 0.1).all()
    assert block.column("update_norm").recorded


@pytest.mark.parametrize("mode", ["observe", "protect"])
def test_a_model_in_double_precision_is_watched_like_any_other(mode: str, tmp_path: Path) -> None:
    model, optimizer = build()
    model.double()
    norms = []
    with trimtab.watch(model, optimizer, run_dir=tmp_path, mode=mode, config=EVERY_10) as guard:
        for batch in batches(12):
            loss = model(batch[:, :-1]).square().mean()
            guard.record(loss=loss)
            loss.backward()
            norms.append(total_norm(model))
            optimizer.step()
            optimizer.zero_grad()
    block = journal_of(tmp_path)
    np.testing.assert_allclose(block.column("grad_norm").values, norms, rtol=1e-5)
    assert block.column("activation_rms/blocks.1").present[[0, 10]].all()
    assert block.column("adam_v_norm").present[[0, 10]].all()


def test_several_optimizers_make_one_step_and_one_norm(tmp_path: Path) -> None:
    model = make_model()
    optimizers = muon_and_adamw(model)
    norms = []
    with trimtab.watch(model, optimizers, run_dir=tmp_path) as guard:
        for batch in batches(6):
            loss = loss_of(model, batch)
            guard.record(loss=loss)
            loss.backward()
            norms.append(total_norm(model))
            for optimizer in optimizers:
                optimizer.step()
                optimizer.zero_grad()
    block = journal_of(tmp_path)
    assert len(block) == 6
    np.testing.assert_allclose(block.column("grad_norm").values, norms, rtol=1e-5)


def test_an_optimizer_that_rests_does_not_swallow_the_step(tmp_path: Path) -> None:
    model = make_model()
    optimizers = muon_and_adamw(model)
    with trimtab.watch(model, optimizers, run_dir=tmp_path) as guard:
        for batch in batches(6):
            loss = loss_of(model, batch)
            guard.record(loss=loss)
            loss.backward()
            optimizers[1].step()  # the other one rests
            model.zero_grad()
    assert len(journal_of(tmp_path)) == 6


@pytest.mark.parametrize("by_name", [True, False])
def test_a_closure_is_watched_behind_itself(by_name: bool, tmp_path: Path) -> None:
    model, optimizer = build(sgd)
    norms = []
    with trimtab.watch(model, optimizer, run_dir=tmp_path) as guard:
        for batch in batches(5):

            def closure(batch: torch.Tensor = batch) -> torch.Tensor:
                optimizer.zero_grad()
                loss = loss_of(model, batch)
                guard.record(loss=loss)
                loss.backward()
                norms.append(total_norm(model))
                return loss.detach()

            if by_name:
                optimizer.step(closure=closure)
            else:
                optimizer.step(closure)
    block = journal_of(tmp_path)
    assert len(block) == 5
    np.testing.assert_allclose(block.column("grad_norm").values, norms, rtol=1e-5)


def test_a_loss_that_is_not_finite_is_journalled_as_what_it_was(tmp_path: Path) -> None:
    model, optimizer = build()
    with trimtab.watch(model, optimizer, run_dir=tmp_path) as guard:
        for factor in (1.0, float("nan"), float("inf")):
            guard.record(loss=torch.tensor(2.0) * factor)
            optimizer.step()
    loss = journal_of(tmp_path).column("loss").values
    assert loss[0] == 2.0
    assert np.isnan(loss[1])
    assert np.isposinf(loss[2])


def test_micro_batches_are_weighed_by_their_tokens(tmp_path: Path) -> None:
    model, optimizer = build()
    with trimtab.watch(model, optimizer, run_dir=tmp_path) as guard:
        guard.record(loss=2.0, tokens=100)
        guard.record(loss=torch.tensor(4.0), tokens=torch.tensor(300))
        optimizer.step()
    block = journal_of(tmp_path)
    assert block.column("loss").values[0] == pytest.approx(3.5)
    assert block.column("tokens").values[0] == 400


@pytest.mark.parametrize("none", [0, torch.tensor(0)])
def test_a_micro_batch_without_tokens_has_no_loss(none: Any, tmp_path: Path) -> None:
    # The mean over no tokens is NaN, and a batch in which everything is masked is no fault.
    model, optimizer = build()
    with trimtab.watch(model, optimizer, run_dir=tmp_path, mode="protect") as guard:
        for loss, tokens in ((2.0, 3), (float("nan"), none)):
            before = model.head.weight.detach().clone()
            loss_of(model, batches(1)[0]).backward()
            guard.record(loss=float("nan"), tokens=none)
            guard.record(loss=loss, tokens=tokens)
            optimizer.step()
            optimizer.zero_grad()
            assert not torch.equal(before, model.head.weight)
    column = journal_of(tmp_path).column("loss")
    assert column.values[0] == 2.0
    assert list(column.present) == [True, False]


def test_own_signals_events_and_eval_loss_are_kept(tmp_path: Path) -> None:
    model, optimizer = build()
    with trimtab.watch(model, optimizer, run_dir=tmp_path) as guard:
        guard.event("data mix", code=0.3)
        guard.record(loss=2.0, eval_loss=torch.tensor(2.5), max_attention_logit=torch.tensor(17.0))
        optimizer.step()
    block = journal_of(tmp_path)
    assert block.column("eval_loss").values[0] == 2.5
    assert block.column("max_attention_logit").values[0] == 17.0
    assert block.events[0].facts == {"code": 0.3}


def test_an_evaluation_between_steps_is_no_step(tmp_path: Path) -> None:
    model, optimizer = build()
    with trimtab.watch(model, optimizer, run_dir=tmp_path) as guard:
        guard.record(eval_loss=3.5)
        optimizer.step()  # of somebody else
        loop(guard, model, optimizer, batches(3))
    block = journal_of(tmp_path)
    assert len(block) == 3
    assert block.column("eval_loss").values[0] == 3.5


def test_a_resume_is_told_and_steps_that_go_back_are_a_new_attempt(tmp_path: Path) -> None:
    for first in (0, 10, 4):
        model, optimizer = build()
        with trimtab.watch(model, optimizer, run_dir=tmp_path, facts={"step": first}) as guard:
            loop(guard, model, optimizer, batches(10))
    block = journal_of(tmp_path)
    assert block.step.tolist() == [*range(20), *range(4, 14)]
    assert block.attempt.tolist() == [0] * 20 + [1] * 10
    assert [event.kind for event in block.events if event.kind == "resume"] == ["resume"] * 2


def test_off_means_off_with_the_same_face(tmp_path: Path) -> None:
    model, optimizer = build()
    with trimtab.watch(model, optimizer, run_dir=tmp_path, enabled=False) as guard:
        for step in guard.steps(batches(4), accumulate=2):
            for batch in step:
                loss = loss_of(model, batch)
                guard.record(loss=loss, tokens=1, anything=3.0)
                loss.backward()
            norm = guard.clip_grad_norm_(0.1)
            assert norm > 0
            optimizer.step()
            guard.event("x")
        assert step.number == 1
        guard.close()
    assert not (tmp_path / "trimtab").exists()
    assert not optimizer._optimizer_step_pre_hooks


def test_nothing_is_left_behind(tmp_path: Path) -> None:
    before = signal.getsignal(signal.SIGTERM)
    model, optimizer = build()
    attributes = set(vars(optimizer))
    with trimtab.watch(model, optimizer, run_dir=tmp_path) as guard:
        loop(guard, model, optimizer, batches(3))
    assert not optimizer._optimizer_step_pre_hooks
    assert not optimizer._optimizer_step_post_hooks
    assert not any(module._forward_hooks for module in model.modules())
    assert set(vars(optimizer)) == attributes
    assert signal.getsignal(signal.SIGTERM) == before


class TestEndings:
    def ended(self, run_dir: Path) -> str | None:
        return read_journal(RunDirectory(run_dir)).ended

    def test_end_of_data(self, tmp_path: Path) -> None:
        model, optimizer = build()
        with trimtab.watch(model, optimizer, run_dir=tmp_path) as guard:
            for step in guard.steps(batches(3)):
                loop(guard, model, optimizer, list(step))
        assert self.ended(tmp_path) == "end of data"

    def test_break(self, tmp_path: Path) -> None:
        model, optimizer = build()
        with trimtab.watch(model, optimizer, run_dir=tmp_path) as guard:
            for step in guard.steps(batches(3)):
                loop(guard, model, optimizer, list(step))
                break
        assert self.ended(tmp_path) == "left the loop"

    def test_an_exception_of_the_user(self, tmp_path: Path) -> None:
        model, optimizer = build()

        def training() -> None:
            with trimtab.watch(model, optimizer, run_dir=tmp_path) as guard:
                for step in guard.steps(batches(3)):
                    loop(guard, model, optimizer, list(step))
                    raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            training()
        assert self.ended(tmp_path) == "raised ZeroDivisionError"
        assert len(journal_of(tmp_path)) == 1

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


def test_bad_batches_in_a_live_run_get_their_postmortem(tmp_path: Path) -> None:
    model, optimizer = build()
    data = batches(200)
    with trimtab.watch(model, optimizer, run_dir=tmp_path, facts={"seed": 0}) as guard:
        for step in guard.steps(data):
            for batch in step:
                is_bad = 150 <= step.number < 156
                loss = loss_of(model, batch) * (50.0 if is_bad else 1.0)
                guard.record(loss=loss, tokens=batch.numel())
                loss.backward()
            guard.clip_grad_norm_(1.0)
            optimizer.step()
            optimizer.zero_grad()
    observe(tmp_path)
    folder = tmp_path / "trimtab" / "incidents"
    texts = [path.read_text() for path in folder.rglob("postmortem.md")]
    spike = next(text for text in texts if " at step 150, " in text)
    assert "| batch position | 150 |" in spike
    assert "| dtype | fp32 |" in spike
    incidents = read_news(RunDirectory(tmp_path))
    assert any(event.facts.get("onset") == 150 for event in incidents)


def test_a_resume_without_the_optimizers_state_is_told_while_the_run_goes_on(
    tmp_path: Path,
) -> None:
    config = Config.from_dict({"live": {"telemetry_every": 1}})
    model, optimizer = build()
    data = batches(240)
    for first, last in ((0, 200), (200, 240)):
        if first:  # the weights go on, the moments do not
            optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        with trimtab.watch(
            model, optimizer, run_dir=tmp_path, config=config, facts={"step": first}
        ) as guard:
            loop(guard, model, optimizer, data[first:last])
    lost = [found for found in observe(tmp_path) if "optimizer state reset" in found.symptoms]
    assert lost
    assert lost[0].onset.step == 200


def test_a_loss_that_leaves_the_one_its_user_knows_is_told(tmp_path: Path) -> None:
    model, optimizer = build()
    with trimtab.watch(model, optimizer, run_dir=tmp_path, facts={"seed": 0}) as guard:
        for step in guard.steps(batches(120)):
            for batch in step:
                loss = loss_of(model, batch)
                known = loss.item() - (0.2 if step.number >= 100 else 0.0)
                guard.record(loss=loss, tokens=batch.numel(), reference_loss=known)
                loss.backward()
            guard.clip_grad_norm_(1.0)
            optimizer.step()
            optimizer.zero_grad()
    first = observe(tmp_path)[0]
    assert first.symptoms == ("left its reference",)
    assert 100 <= first.onset.step <= 105


def test_steps_go_on_counting_when_the_guard_has_stepped_aside(tmp_path: Path) -> None:
    model, optimizer = build()
    numbers = []
    with trimtab.watch(model, optimizer, run_dir=tmp_path) as guard:
        for step in guard.steps(batches(10)):
            numbers.append(step.number)
            if step.number == 4:
                guard._monitor.shields.numbers.is_down = True  # type: ignore[union-attr]
            loop(guard, model, optimizer, list(step))
    assert numbers == list(range(10))


def test_data_positions_go_on_where_a_resume_says(tmp_path: Path) -> None:
    model, optimizer = build()
    with trimtab.watch(model, optimizer, run_dir=tmp_path, facts={"step": 7}) as guard:
        for step in guard.steps(batches(6), accumulate=2, data_position=14):
            for batch in step:
                loss = loss_of(model, batch)
                guard.record(loss=loss)
                loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    block = journal_of(tmp_path)
    assert block.step.tolist() == [7, 8, 9]
    assert block.data_position.tolist() == [14, 16, 18]


def test_a_step_that_the_scaler_skipped_keeps_its_own_number_and_batch(tmp_path: Path) -> None:
    model, optimizer = build(adamw(foreach=True))
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**40)
    seen = []
    with trimtab.watch(model, optimizer, run_dir=tmp_path, state={"scaler": scaler}) as guard:
        for step in guard.steps(batches(40)):
            for batch in step:
                with torch.autocast("cpu", torch.float16):
                    loss = loss_of(model, batch)
                guard.record(loss=loss)
                scaler.scale(loss).backward()
                seen.append((step.number, float(zlib.crc32(batch.numpy().tobytes()))))
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
    block = journal_of(tmp_path)
    assert [event.kind for event in block.events].count("step not applied") >= 3
    prints = block.column("fingerprint").values.tolist()
    assert list(zip(block.step.tolist(), prints, strict=True)) == seen
