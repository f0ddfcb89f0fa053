"""What is touched on an optimizer, what torch makes of it, and that nothing stays behind."""

import contextlib
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.kit.user_loop import NAN, are_equal, column, weights
from tests.live.protect.made_up import (
    MadeUpRun,
    Make,
    assert_same,
    break_step,
    fused,
    give_gradients,
    make_model,
    plain,
    protecting,
    train,
)
from torch import nn, optim
from torch.optim import Optimizer

import trimtab
from trimtab.core.config import Config, GateConfig
from trimtab.live import arithmetic
from trimtab.live.protect.discard import Discard
from trimtab.live.protect.fused_support import FusedSupport


def promoted_from(optimizer: Optimizer) -> set[Any]:
    return {group[name] for group in optimizer.param_groups for name in ("fused", "foreach")}


def made(kind: Any, dtype: torch.dtype = torch.float32, **options: Any) -> MadeUpRun:
    """A model with gradients, and an optimizer that nobody watches."""
    model = make_model(dtype)
    give_gradients(model, 0)
    return MadeUpRun(None, model, kind(model.parameters(), **options))


def reads_flag(optimizer: Optimizer) -> bool:
    return FusedSupport(promote=True).reads_flag(optimizer)


class TestWhatTorchDoes:
    """The facts that the design rests on; if torch changes one of them, these tell it."""

    @pytest.mark.parametrize(("flag", "moves"), [(0.0, True), (1.0, False), (2.0, True)])
    def test_only_exactly_one_withholds_the_step(self, flag: float, moves: bool) -> None:
        run = made(optim.AdamW, fused=True)
        run.optimizer.found_inf = torch.tensor(flag)
        for number in range(2):  # and a flag that stays behind freezes training
            give_gradients(run.model, number)
            assert run.moves(run.optimizer.step) is moves

    def test_fused_sgd_fills_its_momentum_with_whatever_is_in_memory(self) -> None:
        run = made(optim.SGD, lr=0.1, momentum=0.9, fused=True)
        assert not reads_flag(run.optimizer)  # so the step is withheld in the other way
        run.optimizer.found_inf = torch.tensor(1.0)
        run.optimizer.step()
        # A buffer is there although no step was taken; what is in it is nobody's.
        assert run.optimizer.state[run.model[0].weight]["momentum_buffer"] is not None
        assert reads_flag(run.optimizer)

    def test_the_other_forms_refuse_the_flag(self) -> None:
        run = made(optim.AdamW, foreach=True)
        run.optimizer.found_inf = torch.tensor(1.0)
        says = None if torch.__version__.startswith("2.6.") else "found_inf"
        with pytest.raises(AssertionError, match=says):
            run.optimizer.step()

    def test_zero_gradients_still_move_the_weights(self) -> None:
        run = made(optim.AdamW, fused=True)
        run.optimizer.step()
        give_gradients(run.model, 0, size=0.0)
        assert run.moves(run.optimizer.step)


class TestFusedSupport:
    @pytest.mark.parametrize("kind", [optim.Adam, optim.AdamW, optim.SGD, optim.Adagrad])
    def test_what_can_be_promoted_is_and_comes_back(self, kind: Any) -> None:
        run = made(kind, lr=0.1)
        optimizer = run.optimizer
        optimizer.step()
        attributes, defaults = dict(vars(optimizer)), dict(optimizer.defaults)
        weight = next(run.model.parameters())
        step = optimizer.state[weight].get("step")
        subject = FusedSupport(promote=True)
        assert subject.reads_flag(optimizer)
        assert promoted_from(optimizer) == {True, False}
        subject.undo()
        assert promoted_from(optimizer) == {None}
        assert optimizer.defaults == defaults
        assert vars(optimizer).keys() == attributes.keys()
        assert not optimizer._optimizer_state_dict_post_hooks
        assert step is None or optimizer.state[weight]["step"] == step

    def test_nobody_is_promoted_who_does_not_want_to_be(self) -> None:
        optimizer = made(optim.AdamW).optimizer
        assert not FusedSupport(promote=False).reads_flag(optimizer)
        assert promoted_from(optimizer) == {None}

    def test_a_step_of_ones_own_is_not_trusted_with_the_flag(self) -> None:
        class Own(optim.AdamW):
            def step(self, closure: Any = None) -> Any:
                vars(self).pop("found_inf", None)
                return super().step(closure)

        class Renamed(optim.AdamW):
            """Has kept torch's step."""

        assert not reads_flag(made(Own, fused=True).optimizer)
        assert reads_flag(made(Renamed, fused=True).optimizer)
        assert not reads_flag(made(Renamed).optimizer)  # nor promoted

    def test_sparse_gradients_keep_their_form(self) -> None:
        model = nn.Embedding(10, 4, sparse=True)
        optimizer = optim.SGD(model.parameters(), lr=0.1)
        model(torch.tensor([1, 2])).sum().backward()
        assert not reads_flag(optimizer)
        assert promoted_from(optimizer) == {None}
        optimizer.step()

    @pytest.mark.parametrize(("momentum", "promoted"), [(0.9, False), (0.0, True)])
    def test_what_the_fused_form_gets_wrong_keeps_its_form(
        self, momentum: float, promoted: bool
    ) -> None:
        run = made(optim.SGD, torch.bfloat16, lr=0.1, momentum=momentum)
        assert reads_flag(run.optimizer) is promoted

    def test_what_the_fused_form_does_not_take_keeps_its_form(self) -> None:
        weight = nn.Parameter(torch.zeros(3, dtype=torch.complex64))
        weight.grad = torch.ones_like(weight)
        assert not reads_flag(optim.AdamW([weight]))
        with torch.device("meta"):
            model = make_model()
        assert not reads_flag(optim.AdamW(model.parameters()))

    def test_a_checkpoint_has_the_users_form_and_loading_one_does_not_end_protection(self) -> None:
        optimizer = made(optim.AdamW, foreach=True).optimizer
        subject = FusedSupport(promote=True)
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
        subject = FusedSupport(promote=True)
        assert subject.reads_flag(optimizer)
        optimizer.add_param_group({"params": list(model[1].parameters())})
        assert subject.reads_flag(optimizer)
        subject.undo()
        assert promoted_from(optimizer) == {None}


def traces(optimizer: Optimizer) -> set[str]:
    return {"found_inf", "grad_scale"} & set(vars(optimizer))


@pytest.mark.usefixtures("device_path")
class TestTraces:
    def test_the_flag_is_there_during_the_step_and_what_was_there_before_after_it(
        self, tmp_path: Path
    ) -> None:
        with protecting(tmp_path, fused(optim.AdamW)) as run:
            seen: list[set[str]] = []
            run.optimizer.register_step_pre_hook(lambda *_: seen.append(traces(run.optimizer)))
            run.take(0)
            assert seen == [{"found_inf", "grad_scale"}]
            assert traces(run.optimizer) == set()
            for mine in (torch.tensor(0.0), None):
                run.optimizer.found_inf = mine
                run.take(1)
                assert run.optimizer.found_inf is mine

    @pytest.mark.parametrize("make", [fused(optim.AdamW), plain(optim.NAdam)])
    def test_an_error_of_ours_between_set_and_clear(
        self, make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def fails(self: Any) -> None:
            raise RuntimeError("planted")

        with protecting(tmp_path, make) as run:
            monkeypatch.setattr("trimtab.state.contents.Contents.restore", fails)
            assert not run.take(0, NAN)
            assert traces(run.optimizer) == set()
            assert all(p.grad is not None for p in run.model.parameters())
            assert run.take(1)

    @pytest.mark.parametrize("closes", [True, False])
    def test_nothing_is_left_after_close_or_without_it(self, closes: bool, tmp_path: Path) -> None:
        model = make_model()
        optimizer = optim.AdamW(model.parameters(), foreach=True)
        attributes = set(vars(optimizer))
        guard: Any = trimtab.watch(model, optimizer, run_dir=tmp_path, mode="protect")
        run = MadeUpRun(guard, model, optimizer)
        for number in range(3):
            run.take(number)
        if closes:
            guard.close()
            assert set(vars(optimizer)) == attributes
            assert promoted_from(optimizer) == {None, True}
            assert not optimizer._optimizer_step_pre_hooks
        else:
            inside = guard._monitor
            del guard, run
            assert traces(optimizer) == set()
            before = weights(model)
            give_gradients(model, 9)
            optimizer.step()  # nobody records it, so it is left alone
            assert not are_equal(weights(model), before)
            assert traces(optimizer) == set()
            inside.close("end of the test")

    @pytest.mark.parametrize("breaks_off", [False, True])
    def test_gradients_that_were_taken_away_are_put_back_unless_the_step_broke_off(
        self, breaks_off: bool
    ) -> None:
        model = make_model()
        optimizer = optim.NAdam(model.parameters())
        give_gradients(model, 0)
        gradients = [p.grad for p in model.parameters()]
        subject = Discard()
        subject.via_missing_grads(optimizer)
        assert all(p.grad is None for p in model.parameters())
        if breaks_off:
            subject.forget()
        for _ in range(2):  # a second time does nothing
            subject.undo(optimizer)
            for parameter, gradient in zip(model.parameters(), gradients, strict=True):
                assert parameter.grad is (None if breaks_off else gradient)


class TestGradScaler:
    """The real one: its overflows and ours do not disturb each other."""

    @pytest.mark.parametrize("unscales", [True, False])
    @pytest.mark.parametrize("make", [fused(optim.AdamW), plain(optim.AdamW), plain(optim.NAdam)])
    def test_flags_are_ored_and_norms_are_divided_by_the_scale(
        self, make: Make, unscales: bool, tmp_path: Path
    ) -> None:
        """Our discard does not halve the scale."""
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=1000)
        scales, still = [], []
        with protecting(tmp_path, make, state={"scaler": scaler}) as run:
            for number in range(12):
                scaler.scale(torch.zeros(()))  # the scaler makes its scale at first use
                give_gradients(run.model, number, size=scaler.get_scale())
                if number == 7:  # an overflow that is the scaler's own business
                    break_step(run.model, "inf gradient", number)
                run.guard.record(loss=NAN if number in (3, 5) else 1.0)
                if unscales:
                    scaler.unscale_(run.optimizer)
                if not run.moves(scaler.step, run.optimizer):
                    still.append(number)
                scaler.update()
                run.optimizer.zero_grad()
                scales.append(scaler.get_scale())
        assert traces(run.optimizer) == set()
        assert still == [3, 5, 7]
        assert scales == [2.0**10] * 7 + [2.0**9] * 5
        norms = column(tmp_path, "grad_norm")
        for number in (0, 6, 8, 11):  # the scale is another one after step 7
            give_gradients(run.model, number)
            grads = [p.grad for p in run.model.parameters()]
            assert norms[number] == pytest.approx(float(nn.utils.get_total_norm(grads)), rel=1e-5)


class TestClosures:
    def closure(self, run: MadeUpRun, number: int, loss: float) -> Any:
        def evaluate() -> float:
            give_gradients(run.model, number)
            run.guard.record(loss=loss)
            return loss

        return evaluate

    @pytest.mark.parametrize("make", [fused(optim.AdamW), plain(optim.AdamW), plain(optim.Rprop)])
    def test_the_gate_is_behind_the_closure(self, make: Any, tmp_path: Path) -> None:
        with protecting(tmp_path, make) as run:
            for number, loss in enumerate((1.0, NAN, 1.0, NAN)):
                closure = self.closure(run, number, loss)
                assert run.moves(run.optimizer.step, closure) is (loss == loss)

    def test_an_optimizer_that_evaluates_twice_is_refused(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        class Twice(optim.SGD):
            def step(self, closure: Any = None) -> Any:
                closure()
                return super().step(closure)

        with protecting(tmp_path, plain(Twice, lr=0.1)) as run:
            # As it would have without us.
            assert run.moves(run.optimizer.step, self.closure(run, 0, NAN))
            assert run.guard._monitor.is_watching
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

        with protecting(tmp_path, plain(Sharpness, lr=0.0)) as run:
            run.optimizer.height = 0.5
            run.optimizer.step(self.closure(run, 0, NAN))
        for ours, theirs in zip(run.model.parameters(), make_model().parameters(), strict=True):
            torch.testing.assert_close(ours, theirs)  # not left where it had climbed to
        assert "moves the weights before its closure" in caplog.text


class Interrupt:
    """A hook of the user that ends one step in the middle."""

    def __init__(self, error: type[BaseException]) -> None:
        self.error = error
        self.is_armed = False

    def __call__(self, *_: Any) -> None:
        if self.is_armed:
            self.is_armed = False
            raise self.error("in the middle of a step")


@pytest.mark.parametrize(("error", "on_device"), [(RuntimeError, True), (KeyboardInterrupt, False)])
@pytest.mark.parametrize("loss", [1.0, NAN])
@pytest.mark.parametrize("then", ["close", "again", "closure", "record"])
@pytest.mark.parametrize("make", [fused(optim.AdamW), plain(optim.AdamW), plain(optim.NAdam)])
def test_a_step_that_raises_leaves_nothing(
    make: Any, then: str, loss: float, error: Any, on_device: bool, tmp_path: Path
) -> None:
    interrupt = Interrupt(error)

    def closure() -> float:
        give_gradients(run.model, 2)
        return 1.0

    path = arithmetic.device_path() if on_device else contextlib.nullcontext()
    with path, protecting(tmp_path, make) as run:
        run.optimizer.register_step_pre_hook(interrupt)
        run.take(0)
        interrupt.is_armed = True
        with pytest.raises(error):
            run.take(1, loss)
        if then == "record":
            assert run.take(2)
        elif then == "closure":
            assert run.moves(run.optimizer.step, closure)
        elif then == "again":
            assert run.moves(run.optimizer.step) or loss != 1.0
    assert traces(run.optimizer) == set()
    give_gradients(run.model, 3)
    assert run.moves(run.optimizer.step)


def test_without_promotion_it_protects_by_hand(tmp_path: Path) -> None:
    make = plain(optim.AdamW, foreach=False)
    gate, faults = GateConfig(promote=False), {0: "nan loss", 4: "inf gradient"}
    assert Config(gate=gate).to_dict()["gate"]["promote"] is False
    protected = train(make, 8, tmp_path, faults=faults, gate=gate)
    assert_same(protected, train(make, 8, faults=faults))


def test_a_layer_that_is_unfrozen_does_not_end_a_promoted_run(tmp_path: Path) -> None:
    """The fused form of SGD raises if some parameters have momentum and some have none."""
    with protecting(tmp_path, plain(optim.SGD, lr=1e-2, momentum=0.9)) as run:
        first = next(run.model.parameters())
        for number in range(8):
            first.requires_grad_(number >= 4)
            give_gradients(run.model, number)
            if number < 4:
                first.grad = None
            run.guard.record(loss=NAN if number == 6 else 1.0)
            assert run.moves(run.optimizer.step) == (number != 6)
