"""The parts of the guard, one by one."""

import numpy as np
import pytest
import torch
from tests.kit.tiny import make_model, muon_and_adamw
from torch import nn

from trimtab.core.errors import ConfigError
from trimtab.live.arithmetic import HostMath
from trimtab.live.host.recorder import ClipDetector
from trimtab.live.measure.roles import assign_roles, role_of
from trimtab.live.measure.sites import find_blocks
from trimtab.live.measure.state_sums import squares
from trimtab.live.measure.step_loop import LoaderSource, StepLoop
from trimtab.live.measure.step_meter import GradientNorm
from trimtab.live.measure.telemetry import Telemetry
from trimtab.live.optimizers import find_optimizers


class TestOptimizers:
    def test_wrappers_are_unwrapped_and_each_is_found_once(self) -> None:
        model = make_model()
        inner = torch.optim.SGD(model.parameters())

        class Accelerated(torch.optim.Optimizer):
            def __init__(self) -> None:
                self.optimizer = inner

        class Container:
            optimizers = (Accelerated(), inner)

        assert find_optimizers(inner) == (inner,)
        assert find_optimizers(Accelerated()) == (inner,)
        assert find_optimizers(Container()) == (inner,)
        assert find_optimizers([inner, inner]) == (inner,)
        with pytest.raises(ConfigError, match="no torch optimizer found in '"):
            find_optimizers("adam")
        assert len(find_optimizers(muon_and_adamw(model))) == 2

    def test_what_is_none_is_told(self) -> None:
        with pytest.raises(ConfigError, match="no torch optimizer found in dict"):
            find_optimizers({})
        with pytest.raises(ConfigError, match=r"LBFGS .* trimtab.record\(run_dir\)"):
            find_optimizers(torch.optim.LBFGS(make_model().parameters()))


@pytest.mark.parametrize(
    ("name", "role"),
    [
        ("embed.weight", "embedding"),
        ("module.transformer.wte.weight", "embedding"),
        ("model.embed_tokens.weight", "embedding"),
        ("_orig_mod.blocks.0.norm_attention.weight", "norm"),
        ("transformer.h.3.ln_1.weight", "norm"),
        ("model.layers.0.input_layernorm.weight", "norm"),
        ("model.layers.0.self_attn.q_proj.weight", "attention"),
        ("transformer.h.3.attn.c_attn.weight", "attention"),
        ("model.layers.0.mlp.gate_proj.weight", "mlp"),
        ("layers.0.feed_forward.w1.weight", "mlp"),
        ("lm_head.weight", "head"),
        ("output.weight", "head"),
        ("something.weight", "other"),
    ],
)
def test_roles_by_the_names_that_people_use(name: str, role: str) -> None:
    assert role_of(name) == role


def test_sums_by_role_and_layer_equal_a_reference_and_nan_stays_where_it_is() -> None:
    model = make_model()
    optimizer = torch.optim.AdamW(model.parameters())
    gradients = GradientNorm(HostMath())
    meter = Telemetry(model, (optimizer,), gradients, torch.device("cpu"))
    parameters = {name: p.detach() for name, p in model.named_parameters()}
    parameters["blocks.1.attention.weight"][0, 0] = float("nan")
    found = dict(zip(meter.slots, meter.measure().tolist(), strict=True))
    for role in assign_roles(model, list(model.parameters())).names:
        mine = [p for n, p in parameters.items() if role_of(n) == role]
        reference = float(sum(p.double().square().sum() for p in mine))
        assert found[f"param:{role}"] == pytest.approx(reference, rel=1e-5, nan_ok=True)
    assert np.isnan(found["param:attention"])
    assert np.isfinite(found["param:mlp"])
    assert np.isfinite(found["param_layer:0"])
    assert np.isnan(found["param_layer:1"])


def test_norms_are_taken_in_fp32_whatever_the_dtype() -> None:
    large = torch.full((100, 100), 3000.0, dtype=torch.float16)  # norm 3e5, over fp16's 65504
    assert float(squares([large]).sqrt()) == pytest.approx(3e5, rel=1e-4)


@pytest.mark.parametrize(
    ("norms", "clipped"),
    [
        ((0.9999990, 0.7, 1.0), (True, False, True)),  # those at it, and none below
        ((0.31234, 0.31234, 0.2, 0.31234), (False, True, False, True)),  # an odd one is known later
        ((1.7345, 1.0, 1.0, 2.5678), (False,) * 4),  # what others have passed is no ceiling
        ((0.0, float("nan"), float("inf")), (False,) * 3),
    ],
)
def test_norms_at_the_largest_value_were_clipped(
    norms: tuple[float, ...], clipped: tuple[bool, ...]
) -> None:
    ceiling = ClipDetector()
    assert tuple(ceiling.is_clipped(norm) for norm in norms) == clipped


class TestStepLoop:
    def run(self, data: list[int], accumulate: int) -> list[tuple[int, int, list[int]]]:
        loop = StepLoop(LoaderSource(data), accumulate)
        steps: list[tuple[int, int, list[int]]] = []
        while (step := loop.next_step(len(steps))) is not None:
            steps.append((step.number, step.data_position, list(step)))
        return steps

    def test_batches_come_in_steps_and_the_last_may_be_short(self) -> None:
        assert self.run([1, 2, 3, 4, 5], 2) == [(0, 0, [1, 2]), (1, 2, [3, 4]), (2, 4, [5])]
        assert self.run([], 3) == []

    def test_a_step_that_is_left_early_goes_on_at_its_next_batch(self) -> None:
        loop = StepLoop(LoaderSource([1, 2, 3, 4]), 2)
        seen = []
        while (step := loop.next_step(0)) is not None:
            for batch in step:
                seen.append(batch)
                break
        assert seen == [1, 2, 3, 4]
        assert loop.data_position == 3

    def test_accumulate_must_be_a_count(self) -> None:
        with pytest.raises(ConfigError, match="at least 1, got 0"):
            StepLoop(LoaderSource([]), 0)


def test_blocks_are_the_longest_list_of_one_kind() -> None:
    assert [name for name, _ in find_blocks(make_model())] == ["blocks.0", "blocks.1"]
    assert list(find_blocks(nn.Linear(2, 2))) == []
