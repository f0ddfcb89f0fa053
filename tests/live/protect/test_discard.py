"""What is touched on an optimizer, what torch makes of it, and that nothing stays behind."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.live.protect.made_up import (
    NAN,
    assert_same,
    break_step,
    fused,
    give_gradients,
    make_model,
    plain,
    train,
)
from torch import nn, optim
from torch.optim import Optimizer

import trimtab
from trimtab.core.config import Config, GateConfig
from trimtab.live.protect.discard import Discard
from trimtab.live.protect.fused_support import FusedSupport


def forms(promote: bool = True) -> FusedSupport:
    return FusedSupport(promote=promote)


def snapshot(model: nn.Module) -> list[torch.Tensor]:
    return [parameter.detach().clone() for parameter in model.parameters()]


def moved(model: nn.Module, before: list[torch.Tensor]) -> bool:
    return any(not torch.equal(p, b) for p, b in zip(model.parameters(), before, strict=True))


def promoted_from(optimizer: Optimizer) -> set[Any]:
    return {group[name] for group in optimizer.param_groups for name in ("fused", "foreach")}


class TestWhatTorchDoes:
    """The facts that the design rests on; if torch changes one of them, these tell it."""

    @pytest.mark.parametrize(("flag", "moves"), [(0.0, True), (1.0, False), (2.0, True)])
    def test_only_exactly_one_withholds_the_step(self, flag: float, moves: bool) -> None:
        model = make_model()
        optimizer: Any = optim.AdamW(model.parameters(), fused=True)
        give_gradients(model, 0)
        before = snapshot(model)
        optimizer.found_inf = torch.tensor(flag)
        optimizer.step()
        assert moved(model, before) is moves

    def test_a_flag_that_stays_behind_freezes_training(self) -> None:
        model = make_model()
        optimizer: Any = optim.AdamW(model.parameters(), fused=True)
        optimizer.found_inf = torch.tensor(1.0)
        before = snapshot(model)
        for number in range(3):
            give_gradients(model, number)
            optimizer.step()
        assert not moved(model, before)

    def test_fused_sgd_fills_its_momentum_with_whatever_is_in_memory(self) -> None:
        model = make_model()
        optimizer: Any = optim.SGD(model.parameters(), lr=0.1, momentum=0.9, fused=True)
        give_gradients(model, 0)
        assert not forms().reads_flag(optimizer)  # so the step is withheld in the other way
        optimizer.found_inf = torch.tensor(1.0)
        optimizer.step()
        # A buffer is there although no step was taken; what is in it is nobody's.
        assert optimizer.state[model[0].weight]["momentum_buffer"] is not None
        assert forms().reads_flag(optimizer)

    def test_the_other_forms_refuse_the_flag(self) -> None:
        model = make_model()
        optimizer: Any = optim.AdamW(model.parameters(), foreach=True)
        give_gradients(model, 0)
        optimizer.found_inf = torch.tensor(1.0)
        says = None if torch.__version__.startswith("2.6.") else "found_inf"
        with pytest.raises(AssertionError, match=says):
            optimizer.step()

    def test_zero_gradients_still_move_the_weights(self) -> None:
        model = make_model()
        optimizer = optim.AdamW(model.parameters(), fused=True)
        give_gradients(model, 0)
        optimizer.step()
        before = snapshot(model)
        give_gradients(model, 0, size=0.0)
        optimizer.step()
        assert moved(model, before)


class TestFusedSupport:
    def test_what_can_be_promoted_is_and_comes_back(self) -> None:
        for kind in (optim.Adam, optim.AdamW, optim.SGD, optim.Adagrad):
            model = make_model()
            optimizer = kind(model.parameters(), lr=0.1)
            give_gradients(model, 0)
            optimizer.step()
            attributes, defaults = dict(vars(optimizer)), dict(optimizer.defaults)
            weight = next(model.parameters())
            step = optimizer.state[weight].get("step")
            subject = forms()
            assert subject.reads_flag(optimizer)
            assert promoted_from(optimizer) == {True, False}
            subject.undo()
            assert promoted_from(optimizer) == {None}
            assert optimizer.defaults == defaults
            assert vars(optimizer).keys() == attributes.keys()
            assert not optimizer._optimizer_state_dict_post_hooks
            assert step is None or optimizer.state[weight]["step"] == step

    def test_nobody_is_promoted_who_does_not_want_to_be(self) -> None:
        model = make_model()
        optimizer = optim.AdamW(model.parameters())
        give_gradients(model, 0)
        assert not forms(promote=False).reads_flag(optimizer)
        assert promoted_from(optimizer) == {None}

    def test_a_step_of_ones_own_is_not_trusted_with_the_flag(self) -> None:
        class Own(optim.AdamW):
            def step(self, closure: Any = None) -> Any:
                vars(self).pop("found_inf", None)
                return super().step(closure)

        class Renamed(optim.AdamW):
            """Has kept torch's step."""

        model = make_model()
        give_gradients(model, 0)
        assert not forms().reads_flag(Own(model.parameters(), fused=True))
        assert forms().reads_flag(Renamed(model.parameters(), fused=True))
        assert not forms().reads_flag(Renamed(model.parameters()))  # nor promoted

    def test_sparse_gradients_keep_their_form(self) -> None:
        model = nn.Embedding(10, 4, sparse=True)
        optimizer = optim.SGD(model.parameters(), lr=0.1)
        model(torch.tensor([1, 2])).sum().backward()
        subject = forms()
        assert not subject.reads_flag(optimizer)
        assert promoted_from(optimizer) == {None}
        optimizer.step()

    @pytest.mark.parametrize(("momentum", "promoted"), [(0.9, False), (0.0, True)])
    def test_what_the_fused_form_gets_wrong_keeps_its_form(
        self, momentum: float, promoted: bool
    ) -> None:
        model = make_model(torch.bfloat16)
        optimizer = optim.SGD(model.parameters(), lr=0.1, momentum=momentum)
        give_gradients(model, 0)
        assert forms().reads_flag(optimizer) is promoted

    def test_what_the_fused_form_does_not_take_keeps_its_form(self) -> None:
        weight = nn.Parameter(torch.zeros(3, dtype=torch.complex64))
        weight.grad = torch.ones_like(weight)
        subject = forms()
        assert not subject.reads_flag(optim.AdamW([weight]))
        with torch.device("meta"):
            model = make_model()
        assert not subject.reads_flag(optim.AdamW(model.parameters()))

    def test_a_checkpoint_has_the_users_form_and_loading_one_does_not_end_protection(self) -> None:
        model = make_model()
        optimizer = optim.AdamW(model.parameters(), foreach=True)
        give_gradients(model, 0)
        subject = forms()
        assert subject.reads_flag(optimizer)
        optimizer.step()
        saved = optimizer.state_dict()
        assert saved["param_groups"][0]["fused"] is None
        assert saved["param_groups"][0]["foreach"] is True
        optimizer.load_state_dict(saved)
        assert not optimizer.param_groups[0]["fused"]
        assert subject.reads_flag(optimizer)
        assert optimizer.param_groups[0]["fused"]

    def test_a_group_that_comes_later_is_promoted_too(self) -> None:
        model = make_model()
        optimizer = optim.AdamW(model[0].parameters())
        give_gradients(model, 0)
        subject = forms()
        assert subject.reads_flag(optimizer)
        optimizer.add_param_group({"params": list(model[1].parameters())})
        assert subject.reads_flag(optimizer)
        subject.undo()
        assert promoted_from(optimizer) == {None}


@pytest.fixture
def guarded(device_path: None, tmp_path: Path) -> Iterator[tuple[nn.Module, Any, Any]]:
    model = make_model()
    optimizer = optim.AdamW(model.parameters(), fused=True)
    with trimtab.watch(model, optimizer, run_dir=tmp_path, mode="protect") as guard:
        yield model, optimizer, guard


def traces(optimizer: Optimizer) -> set[str]:
    return {"found_inf", "grad_scale"} & set(vars(optimizer))


@pytest.mark.usefixtures("device_path")
class TestTraces:
    def step(self, model: nn.Module, optimizer: Optimizer, guard: Any, number: int = 0) -> None:
        give_gradients(model, number)
        guard.record(loss=1.0)
        optimizer.step()

    def test_the_flag_is_there_during_the_step_and_only_then(
        self, guarded: tuple[nn.Module, Any, Any]
    ) -> None:
        model, optimizer, guard = guarded
        seen: list[set[str]] = []
        optimizer.register_step_pre_hook(lambda *_: seen.append(traces(optimizer)))
        self.step(model, optimizer, guard)
        assert seen == [{"found_inf", "grad_scale"}]
        assert traces(optimizer) == set()

    def test_what_was_there_before_is_there_again(
        self, guarded: tuple[nn.Module, Any, Any]
    ) -> None:
        model, optimizer, guard = guarded
        mine = torch.tensor(0.0)
        optimizer.found_inf = mine
        self.step(model, optimizer, guard)
        assert optimizer.found_inf is mine
        optimizer.found_inf = None
        self.step(model, optimizer, guard)
        assert optimizer.found_inf is None

    def test_an_optimizer_that_raises_is_clean_for_its_next_step(
        self, guarded: tuple[nn.Module, Any, Any]
    ) -> None:
        model, optimizer, guard = guarded

        def fails(*_: Any) -> None:
            raise MemoryError

        handle = optimizer.register_step_pre_hook(fails)
        give_gradients(model, 0)
        guard.record(loss=NAN)
        with pytest.raises(MemoryError):
            optimizer.step()
        handle.remove()
        before = snapshot(model)
        self.step(model, optimizer, guard)
        assert moved(model, before)
        assert traces(optimizer) == set()

    @pytest.mark.parametrize("by_flag", [True, False])
    def test_an_error_of_ours_between_set_and_clear(
        self, by_flag: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        model = make_model()
        make = fused(optim.AdamW) if by_flag else plain(optim.NAdam)
        optimizer = make(list(model.parameters()))

        def fails(self: Any) -> None:
            raise RuntimeError("planted")

        with trimtab.watch(model, optimizer, run_dir=tmp_path, mode="protect") as guard:
            monkeypatch.setattr("trimtab.state.contents.Contents.restore", fails)
            give_gradients(model, 0)
            gradients = [p.grad for p in model.parameters()]
            guard.record(loss=NAN)
            before = snapshot(model)
            optimizer.step()
            assert not moved(model, before)
            assert traces(optimizer) == set()
            assert [p.grad for p in model.parameters()] == gradients
            self.step(model, optimizer, guard, 1)
            assert moved(model, before)

    def test_nothing_is_left_after_close_or_without_it(self, tmp_path: Path) -> None:
        for close in (True, False):
            model = make_model()
            optimizer = optim.AdamW(model.parameters(), foreach=True)
            attributes = set(vars(optimizer))
            run_dir = tmp_path / str(close)
            guard: Any = trimtab.watch(model, optimizer, run_dir=run_dir, mode="protect")
            for number in range(3):
                self.step(model, optimizer, guard, number)
            if close:
                guard.close()
                assert set(vars(optimizer)) == attributes
                assert promoted_from(optimizer) == {None, True}
                assert not optimizer._optimizer_step_pre_hooks
            else:
                inside = guard._monitor
                del guard
                assert traces(optimizer) == set()
                before = snapshot(model)
                give_gradients(model, 9)
                optimizer.step()  # nobody records it, so it is left alone
                assert moved(model, before)
                assert traces(optimizer) == set()
                inside.close("end of the test")

    def test_gradients_that_were_taken_away_are_put_back(self) -> None:
        model = make_model()
        optimizer = optim.NAdam(model.parameters())
        give_gradients(model, 0)
        gradients = [p.grad for p in model.parameters()]
        subject = Discard()
        subject.via_missing_grads(optimizer)
        assert all(p.grad is None for p in model.parameters())
        subject.undo(optimizer)
        assert all(p.grad is g for p, g in zip(model.parameters(), gradients, strict=True))
        subject.undo(optimizer)  # a second time does nothing

    def test_gradients_of_a_step_that_broke_off_are_not(self) -> None:
        model = make_model()
        optimizer = optim.NAdam(model.parameters())
        give_gradients(model, 0)
        subject = Discard()
        subject.via_missing_grads(optimizer)
        subject.forget()
        subject.undo(optimizer)
        assert all(p.grad is None for p in model.parameters())


class TestGradScaler:
    """The real one: its overflows and ours do not disturb each other."""

    def run(
        self, make: Any, folder: Path, bad: set[int], *, unscales: bool, mode: str = "protect"
    ) -> tuple[nn.Module, Optimizer, list[float], list[bool]]:
        model = make_model()
        optimizer = make(list(model.parameters()))
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=1000)
        scales, applied = [], []
        with trimtab.watch(
            model, optimizer, run_dir=folder, mode=mode, state={"scaler": scaler}
        ) as guard:
            for number in range(12):
                scaler.scale(torch.zeros(()))  # the scaler makes its scale at first use
                give_gradients(model, number, size=scaler.get_scale())
                if number == 7:  # an overflow that is the scaler's own business
                    break_step(model, "inf gradient", number)
                guard.record(loss=NAN if number in bad else 1.0)
                if unscales:
                    scaler.unscale_(optimizer)
                before = snapshot(model)
                scaler.step(optimizer)
                scaler.update()
                applied.append(moved(model, before))
                optimizer.zero_grad()
                scales.append(scaler.get_scale())
        assert traces(optimizer) == set()
        return model, optimizer, scales, applied

    @pytest.mark.parametrize("unscales", [True, False])
    @pytest.mark.parametrize("kind", ["fused", "promoted", "by hand"])
    def test_flags_are_ored_and_our_discard_does_not_halve_the_scale(
        self, kind: str, unscales: bool, tmp_path: Path
    ) -> None:
        make = {
            "fused": fused(optim.AdamW),
            "promoted": plain(optim.AdamW),
            "by hand": plain(optim.NAdam),
        }[kind]
        *_, scales, applied = self.run(make, tmp_path, {3, 5}, unscales=unscales)
        assert [number for number, was in enumerate(applied) if not was] == [3, 5, 7]
        assert scales == [2.0**10] * 7 + [2.0**9] * 5

    @pytest.mark.parametrize("unscales", [True, False])
    def test_norms_are_divided_by_the_scale(self, unscales: bool, tmp_path: Path) -> None:
        from tests.kit.tiny import journal_of

        model, *_ = self.run(fused(optim.AdamW), tmp_path, {3}, unscales=unscales)
        norms = journal_of(tmp_path).column("grad_norm").values
        for number in (0, 6, 8, 11):  # the scale is another one after step 7
            give_gradients(model, number)
            true = torch.cat([p.grad.view(-1) for p in model.parameters() if p.grad is not None])
            assert norms[number] == pytest.approx(float(true.norm()), rel=1e-5)


class TestClosures:
    def closure(self, model: nn.Module, guard: Any, number: int, loss: float) -> Any:
        def evaluate() -> float:
            give_gradients(model, number)
            guard.record(loss=loss)
            return loss

        return evaluate

    @pytest.mark.parametrize("make", [fused(optim.AdamW), plain(optim.AdamW), plain(optim.Rprop)])
    def test_the_gate_is_behind_the_closure(self, make: Any, tmp_path: Path) -> None:
        model = make_model()
        optimizer = make(list(model.parameters()))
        with trimtab.watch(model, optimizer, run_dir=tmp_path, mode="protect") as guard:
            for number, loss in enumerate((1.0, NAN, 1.0, NAN)):
                before = snapshot(model)
                optimizer.step(self.closure(model, guard, number, loss))
                assert moved(model, before) is (loss == loss)

    def test_an_optimizer_that_evaluates_twice_is_refused(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        class Twice(optim.SGD):
            def step(self, closure: Any = None) -> Any:
                closure()
                return super().step(closure)

        model = make_model()
        optimizer = Twice(model.parameters(), lr=0.1)
        with trimtab.watch(model, optimizer, run_dir=tmp_path, mode="protect") as guard:
            before = snapshot(model)
            optimizer.step(self.closure(model, guard, 0, NAN))
            assert moved(model, before)  # as it would have without us
            assert guard._monitor.is_watching  # type: ignore[union-attr]
        assert "evaluates its closure more than once" in caplog.text
        assert "keeps watching" in caplog.text

    def test_an_optimizer_that_moves_before_it_evaluates_is_refused(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        class Sharpness(optim.SGD):
            """Climbs, evaluates, climbs back and steps, as SAM does; not before it is told to."""

            height = 0.0

            def step(self, closure: Any = None) -> Any:
                weights = [p for group in self.param_groups for p in group["params"]]
                with torch.no_grad():
                    for weight in weights if self.height else ():
                        weight.add_(self.height)
                closure()
                with torch.no_grad():
                    for weight in (p for p in weights if p.grad is not None):
                        weight.sub_(self.height)
                return super().step()

        model = make_model()
        twin = make_model()
        optimizer = Sharpness(model.parameters(), lr=0.0)
        with trimtab.watch(model, optimizer, run_dir=tmp_path, mode="protect") as guard:
            optimizer.height = 0.5
            optimizer.step(self.closure(model, guard, 0, NAN))
        for ours, theirs in zip(model.parameters(), twin.parameters(), strict=True):
            torch.testing.assert_close(ours, theirs)  # not left where it had climbed to
        assert "moves the weights before its closure" in caplog.text


NADAM = plain(optim.NAdam)


class Interrupt:
    """A hook of the user that ends one step in the middle."""

    def __init__(self, error: type[BaseException]) -> None:
        self.error = error
        self.is_armed = False

    def __call__(self, *_: Any) -> None:
        if self.is_armed:
            self.is_armed = False
            raise self.error("in the middle of a step")


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
@pytest.mark.parametrize("loss", [1.0, NAN])
@pytest.mark.parametrize("then", ["close", "again", "closure", "record"])
@pytest.mark.parametrize("make", [fused(optim.AdamW), plain(optim.AdamW), NADAM])
def test_a_step_that_raises_leaves_nothing(
    make: Any, then: str, loss: float, error: type[BaseException], tmp_path: Path
) -> None:
    model = make_model()
    optimizer = make(list(model.parameters()))
    interrupt = Interrupt(error)

    def closure() -> float:
        give_gradients(model, 2)
        return 1.0

    with trimtab.watch(model, optimizer, run_dir=tmp_path, mode="protect") as guard:
        optimizer.register_step_pre_hook(interrupt)
        for number in range(2):
            give_gradients(model, number)
            guard.record(loss=loss if number else 1.0)
            interrupt.is_armed = number == 1
            if not number:
                optimizer.step()
                continue
            with pytest.raises(error):
                optimizer.step()
        before = snapshot(model)
        if then == "record":
            give_gradients(model, 2)
            guard.record(loss=1.0)
        if then != "close":
            optimizer.step(*[closure] * (then == "closure"))
            is_retried = then == "again" and loss == 1.0
            fresh = then in ("closure", "record")
            if fresh or is_retried:
                assert moved(model, before)
    assert not {"found_inf", "grad_scale"} & vars(optimizer).keys()
    before = snapshot(model)
    give_gradients(model, 3)
    optimizer.step()
    assert moved(model, before)


@pytest.mark.skipif(not hasattr(optim, "Muon"), reason="this torch has no Muon")
def test_several_optimizers_have_one_norm_and_one_decision(tmp_path: Path) -> None:
    model = make_model()
    first, second = list(model[0].parameters()), list(model[1].parameters())
    optimizers: list[Any] = [optim.AdamW(first), optim.Muon(second)]
    with trimtab.watch(model, optimizers, run_dir=tmp_path, mode="protect") as guard:
        for number in range(6):
            give_gradients(model, number)
            if number in (0, 3):  # only the second one's gradients are bad
                assert second[0].grad is not None
                second[0].grad[0, 0] = NAN
            guard.record(loss=1.0)
            before = snapshot(model)
            for optimizer in optimizers:
                optimizer.step()
            for parameter, was in zip(model.parameters(), before, strict=True):
                assert torch.equal(parameter, was) is (number in (0, 3))


def test_an_unfit_mode_is_told(tmp_path: Path) -> None:
    model = make_model()
    with pytest.raises(trimtab.TrimtabError, match="observe, protect"):
        trimtab.watch(model, optim.SGD(model.parameters()), run_dir=tmp_path, mode="guard")


def test_without_promotion_it_protects_by_hand(tmp_path: Path) -> None:
    make = plain(optim.AdamW, foreach=False)
    gate = GateConfig(promote=False)
    assert Config(gate=gate).to_dict()["gate"]["promote"] is False
    protected = train(make, 8, tmp_path, faults={0: "nan loss", 4: "inf gradient"}, gate=gate)
    assert_same(protected, train(make, 8, faults={0: "nan loss", 4: "inf gradient"}))


def test_a_layer_that_is_unfrozen_does_not_end_a_promoted_run(tmp_path: Path) -> None:
    """The fused form of SGD raises if some parameters have momentum and some have none."""
    model = make_model()
    first = next(model.parameters())
    first.requires_grad_(False)
    optimizer = optim.SGD(model.parameters(), lr=1e-2, momentum=0.9)
    with trimtab.watch(model, optimizer, run_dir=tmp_path, mode="protect") as guard:
        for number in range(8):
            first.requires_grad_(number >= 4)
            give_gradients(model, number)
            if number < 4:
                first.grad = None
            guard.record(loss=float("nan") if number == 6 else 1.0)
            before = snapshot(model)
            optimizer.step()
            assert moved(model, before) == (number != 6)
