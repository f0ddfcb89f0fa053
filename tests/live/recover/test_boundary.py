"""When a rollback happens, what keeps it from happening, and what a loop may do around it."""

import gc
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.kit.cases import some_of
from tests.kit.recovering import assert_exact, drive, plain_run, train_step
from tests.kit.runs import Run, batches, same_run
from torch import nn, optim

import trimtab
from trimtab.core.config import Config
from trimtab.core.errors import ConfigError, RestoreError
from trimtab.live.guard import Guard
from trimtab.state.snapshot import Snapshot

Log = pytest.LogCaptureFixture


def watch(run: Run, folder: Path, mode: str = "recover", **options: Any) -> Guard:
    guard = trimtab.watch(
        run.model,
        run.optimizers,
        run_dir=folder,
        mode=mode,
        state={**(run.state or {}), "scheduler": run.schedulers},
        **options,
    )
    assert isinstance(guard, Guard)
    return guard


def lines(log: Log, text: str) -> list[str]:
    return [record.getMessage() for record in log.records if text in record.getMessage()]


class TestDeferral:
    def odd_loop(self, folder: Path, back: bool) -> Run:
        """Asks in the middle of a step, leaves some steps early and passes over others."""
        run = plain_run(accumulate=3)
        run.schedulers = [optim.lr_scheduler.LambdaLR(run.optimizers[0], lambda s: 0.99**s)]
        has_asked = False
        with watch(run, folder) as guard:
            for step in guard.steps(run.loader, run.accumulate):
                if step.number >= 50:
                    break
                if step.number % 7 == 3:
                    run.losses[step.number] = -1.0
                    continue
                pairs = []
                for batch in step:
                    pairs.append(batch)
                    if back and step.number == 40 and not has_asked:
                        has_asked = True
                        weight = run.model.get_parameter("head.weight")
                        before = weight.detach().clone()
                        guard.rollback(to=25)
                        assert torch.equal(weight, before)
                    if step.number % 5 == 4 and len(pairs) == 2:
                        break
                train_step(run, guard, step.number, pairs)
            assert guard.recovery is not None
            assert guard.recovery.attempt == int(back)
        return run

    def test_a_rollback_waits_for_the_boundary_whatever_the_loop_does(self, tmp_path: Path) -> None:
        straight = self.odd_loop(tmp_path / "straight", back=False)
        returned = self.odd_loop(tmp_path / "returned", back=True)
        same_run(straight, returned)
        # In a hook of the optimizer the user's `scheduler.step()` would have come once more.
        assert returned.schedulers[0].last_epoch == straight.schedulers[0].last_epoch

    def test_an_order_that_comes_with_the_last_batch_is_carried_out(self, tmp_path: Path) -> None:
        run = plain_run(loader=batches(30))
        numbers = []
        with watch(run, tmp_path) as guard:
            for step in guard.steps(run.loader):
                numbers.append(step.number)
                train_step(run, guard, step.number, step)
                if len(numbers) == 30:
                    guard.rollback(to=25)
        assert numbers == [*range(30), *range(20, 30)]

    def test_an_order_after_leaving_the_loop_is_carried_out_in_the_next(
        self, tmp_path: Path
    ) -> None:
        run = plain_run()
        numbers = []
        with watch(run, tmp_path) as guard:
            for end in (25, 30):
                for step in guard.steps(run.loader):
                    numbers.append((step.number, step.data_position))
                    train_step(run, guard, step.number, step)
                    if step.number + 1 == end:
                        break
                guard.rollback(to=20)
        assert [number for number, _ in numbers] == [*range(25), *range(20, 30)]
        assert [position for _, position in numbers] == [*range(25), *range(20, 30)]

    def test_a_later_rollback_never_lands_in_the_attempt_given_up(self, tmp_path: Path) -> None:
        run = plain_run()
        kept: list[list[int]] = []

        def look(guard: Any, step: int) -> None:
            kept.append([slot.step for slot in guard.recovery.snapshots.ring.kept])

        drive(run, tmp_path, 60, back={55: 20}, on_step=look)
        assert kept[54][-1] == 50
        assert kept[55][-1] == 20  # the first step after the rollback


class TestRefusal:
    def test_without_the_step_loop_it_is_said_and_the_run_stays_protected(
        self, tmp_path: Path, caplog: Log
    ) -> None:
        run = plain_run()
        with watch(run, tmp_path) as guard:
            for number, pair in enumerate(batches(15)):
                train_step(run, guard, number, [pair])
            guard.rollback(to=5)
        assert len(lines(caplog, "guard.steps(loader)")) == 1

    def test_in_other_modes_it_is_said(self, tmp_path: Path, caplog: Log) -> None:
        with watch(plain_run(), tmp_path, "protect") as guard:
            guard.rollback(to=5)
        assert len(lines(caplog, "mode='recover'")) == 1

    def test_a_guard_that_is_off_does_nothing(self, tmp_path: Path) -> None:
        run = plain_run()
        guard = trimtab.watch(run.model, run.optimizers, run_dir=tmp_path, enabled=False)
        guard.rollback(to=5, skip=[1], hold=["lr"], reason="")
        guard.release("lr")

    def test_a_step_before_the_oldest_snapshot_is_refused(
        self, tmp_path: Path, caplog: Log
    ) -> None:
        settings = {"oldest_steps": 20}
        assert drive(plain_run(), tmp_path, 120, back={100: 3}, settings=settings) == 0
        assert len(lines(caplog, "the oldest snapshot is of step")) == 1

    def test_a_scheduler_that_is_not_given_is_refused_at_the_start(self, tmp_path: Path) -> None:
        run = plain_run()
        first, second = optim.lr_scheduler.LambdaLR, optim.lr_scheduler.CosineAnnealingLR
        second(run.optimizers[0], 10)
        other = plain_run()
        for given in ([], [first(other.optimizers[0], lambda step: 1.0)]):
            run.schedulers = given
            with pytest.raises(ConfigError, match=r"state=\{'scheduler': scheduler\}"):
                watch(run, tmp_path)
        watch(run, tmp_path / "protect", "protect").close()

    def test_a_scheduler_made_after_watch_is_refused_before_the_first_step(
        self, tmp_path: Path
    ) -> None:
        run = plain_run()
        with watch(run, tmp_path) as guard:
            optim.lr_scheduler.CosineAnnealingLR(run.optimizers[0], 10)
            with pytest.raises(ConfigError, match="scheduler"):
                next(iter(guard.steps(run.loader)))

    @pytest.mark.parametrize("given", [{"scheduler": 1}, {"ema": object()}])
    def test_state_that_cannot_be_set_back_is_refused(self, given: Any, tmp_path: Path) -> None:
        run = plain_run()
        with pytest.raises(ConfigError, match="without state_dict"):
            trimtab.watch(run.model, run.optimizers, run_dir=tmp_path, mode="recover", state=given)

    def test_a_changed_model_is_refused_and_the_run_goes_on(
        self, tmp_path: Path, caplog: Log
    ) -> None:
        run = plain_run()

        def change(guard: Any, step: int) -> None:
            if step == 15:
                run.model.register_buffer("new", torch.zeros(1))

        assert drive(run, tmp_path, 30, back={18: 10}, on_step=change) == 0
        assert len(lines(caplog, "(different: new)")) == 1
        assert 29 in run.losses


class TestFailures:
    def test_a_snapshot_that_fails_is_said_once_and_costs_nothing_else(
        self, tmp_path: Path, caplog: Log, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        take = Snapshot.take

        def fail_later(self: Snapshot, state: Any, step: int) -> None:
            if step == 20:
                raise OSError("no memory")
            take(self, state, step)

        monkeypatch.setattr(Snapshot, "take", fail_later)
        run, protected = plain_run(), None
        assert drive(run, tmp_path / "recover", 50, back={45: 30}) == 0
        assert len(lines(caplog, "the run cannot go back")) == 1
        assert len(lines(caplog, "no rollback to step 30")) == 1
        protected = plain_run()
        drive(protected, tmp_path / "protect", 50, mode="protect")
        same_run(run, protected)

    def test_a_restore_that_fails_half_way_stops_the_run(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        run = plain_run()
        average = optim.swa_utils.AveragedModel(run.model)
        run.state = {"ema": average}

        def fail(state: Any) -> None:
            raise ValueError("bad state")

        monkeypatch.setattr(average, "load_state_dict", fail)
        with pytest.raises(RestoreError, match=r"step 10 failed half-way .*bad state.*restart"):
            drive(run, tmp_path, 30, back={18: 10})


class TestMemory:
    def test_too_little_memory_leaves_the_run_protected(self, tmp_path: Path, caplog: Log) -> None:
        settings = {"recover.memory_share": 1e-12}
        assert drive(plain_run(), tmp_path, 30, back={18: 10}, settings=settings) == 0
        assert len(lines(caplog, "do not fit into")) == 1

    def test_the_plan_is_stated_once(self, tmp_path: Path, caplog: Log) -> None:
        caplog.set_level("INFO", "trimtab")
        drive(plain_run(), tmp_path, 30)
        (line,) = lines(caplog, "the run can go back")
        assert "7 snapshots of 0.0 MiB on each rank, 10 to 320 steps old" in line

    def test_batches_are_kept_only_as_long_as_a_snapshot_needs_them(self, tmp_path: Path) -> None:
        sizes: list[int] = []

        def look(guard: Any, step: int) -> None:
            sizes.append(len(guard.recovery.tape))

        drive(
            plain_run(),
            tmp_path,
            250,
            settings={"oldest_steps": 20, "live.activations": False},
            on_step=look,
        )
        assert max(sizes) <= 2 * 20 + 10

    @pytest.mark.parametrize("mode", some_of(["observe", "protect"], "protect"))
    def test_in_other_modes_no_batch_is_kept(self, mode: str, tmp_path: Path) -> None:
        run = plain_run(loader=(pair for pair in batches(5)))
        seen: list[weakref.ref[torch.Tensor]] = []
        with watch(run, tmp_path, mode) as guard:
            assert guard.recovery is None
            for step in guard.steps(run.loader):
                gc.collect()
                assert all(reference() is None for reference in seen[:-1])
                batch = torch.randn(1)
                step.batches[0] = batch
                seen.append(weakref.ref(batch))
                del batch


class TestWhatLoopsDo:
    def test_gradients_cleared_at_the_start_of_a_step(self, tmp_path: Path, caplog: Log) -> None:
        def loop(folder: Path, back: dict[int, int]) -> Run:
            run = plain_run()
            optimizer = run.optimizers[0]
            with watch(run, folder) as guard:
                for step in guard.steps(run.loader):
                    if step.number >= 50:
                        return run
                    optimizer.zero_grad()
                    for inputs, targets in step:
                        loss = nn.functional.mse_loss(run.model(inputs), targets)
                        guard.record(loss=loss)
                        loss.backward()
                    run.losses[step.number] = loss.item()
                    optimizer.step()
                    if step.number + 1 in back:
                        guard.rollback(to=back.pop(step.number + 1))
            raise AssertionError

        same_run(loop(tmp_path / "straight", {}), loop(tmp_path / "returned", {40: 25}))
        assert len(lines(caplog, "gradients between two steps")) == 2  # once for each run

    def test_gradients_accumulated_by_hand_over_several_boundaries(self, tmp_path: Path) -> None:
        def loop(folder: Path, back: dict[int, int]) -> Run:
            run = plain_run()
            optimizer = run.optimizers[0]
            with watch(run, folder) as guard:
                for count, step in enumerate(guard.steps(run.loader)):
                    if step.number >= 50:
                        return run
                    position = step.data_position
                    for inputs, targets in step:
                        loss = nn.functional.mse_loss(run.model(inputs), targets)
                        guard.record(loss=loss)
                        (loss / 3).backward()
                    run.losses[position] = loss.item()
                    if position % 3 == 2:
                        optimizer.step()
                        optimizer.zero_grad()
                    if count + 1 in back:
                        guard.rollback(to=back.pop(count + 1))
            raise AssertionError

        same_run(loop(tmp_path / "straight", {}), loop(tmp_path / "returned", {100: 25}))

    def test_batches_changed_in_place_are_reported_and_copied_from_then_on(
        self, tmp_path: Path, caplog: Log
    ) -> None:
        run = plain_run()
        seen: dict[int, list[float]] = {}
        with watch(run, tmp_path) as guard:
            for step in guard.steps(run.loader):
                for inputs, targets in step:
                    seen.setdefault(step.number, []).append(inputs.sum().item())
                    train_step(run, guard, step.number, [(inputs, targets)])
                    inputs.mul_(2.0)
                if step.number in (18, 19, 29) and len(seen[step.number]) == 1:
                    guard.rollback(to=10)
                if step.number == 35:
                    break
        assert len(lines(caplog, "changes its batches in place")) == 1
        first, again, third = seen[12][:3]
        assert again == third == pytest.approx(2 * first)
        assert seen[25][0] == seen[25][1]

    def test_a_data_position_that_is_set_drops_the_snapshots(self, tmp_path: Path) -> None:
        run = plain_run()
        with watch(run, tmp_path) as guard:
            for start in (0, 100):
                for step in guard.steps(run.loader, data_position=start):
                    train_step(run, guard, step.number, step)
                    if step.number in (24, 40):
                        break
            recovery = guard.recovery
            assert recovery is not None
            assert [s.step for s in recovery.snapshots.ring.kept] == [25, 35]
            assert recovery.snapshots.marks[25].position == 100

    def test_a_step_number_counts_and_a_counter_of_the_users_can_return(
        self, tmp_path: Path
    ) -> None:
        class Counter:
            value = 0

            def state_dict(self) -> dict[str, int]:
                return {"value": self.value}

            def load_state_dict(self, state: dict[str, int]) -> None:
                self.value = state["value"]

        run, counter = plain_run(), Counter()
        run.state = {"counter": counter}
        numbers = []

        def count(guard: Any, step: int) -> None:
            counter.value += 1
            numbers.append((step, counter.value))

        drive(run, tmp_path, 40, back={30: 15}, on_step=count)
        assert all(value == step + 1 for step, value in numbers)
        assert len(numbers) == 60

    def test_buffers_of_a_discarded_step_after_a_rollback_are_those_of_the_snapshot(
        self, tmp_path: Path
    ) -> None:
        run = plain_run()
        buffers: dict[int, dict[str, torch.Tensor]] = {}
        with watch(run, tmp_path) as guard:
            assert guard.recovery is not None
            for step in guard.steps(run.loader):
                if step.number >= 30:
                    break
                pairs = [
                    (inputs * torch.nan if guard.recovery.attempt else inputs, targets)
                    for inputs, targets in step
                ]
                now = {n: b.detach().clone() for n, b in run.model.named_buffers()}
                if guard.recovery.attempt:
                    train_step(run, guard, step.number, pairs)
                    for name, buffer in run.model.named_buffers():
                        assert torch.equal(buffer, buffers[20][name]), name
                    break
                buffers[step.number] = now
                train_step(run, guard, step.number, pairs)
                if step.number == 27:
                    guard.rollback(to=20)
            assert guard.recovery.attempt == 1

    def test_several_snapshots_may_lie_within_a_window_of_the_gate(self, tmp_path: Path) -> None:
        config = Config().override({"snapshot_every": 3, "oldest_steps": 24})
        assert config.recover.snapshot_every == 3
        assert_exact(
            plain_run,
            tmp_path,
            back={60: 59, 66: 64},
            settings={"snapshot_every": 3, "oldest_steps": 24},
        )
