"""The callback in TRL's trainers: SFT, whose loss no forward hook could see; GRPO and DPO."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import transformers
from tests.integrations.hf.test_callback import logged
from tests.kit.hf import bits, make_dpo, make_grpo, make_sft
from tests.kit.tiny import journal_of

from trimtab.integrations.hf import TrimtabCallback

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:.*:FutureWarning"),
    pytest.mark.filterwarnings("ignore:.*:UserWarning"),
    pytest.mark.slow,  # importing TRL takes longer than the tests
]


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"loss_type": "dft"},
        {"label_smoothing_factor": 0.1},
        {"gradient_accumulation_steps": 4, "packing": True},
        {"gradient_checkpointing": True, "gradient_accumulation_steps": 2},
    ],
)
def test_sft_has_the_same_bits_and_the_true_loss(arguments: dict[str, Any], tmp_path: Path) -> None:
    def train(name: str, callback: Any) -> Any:
        transformers.set_seed(0)
        trainer = make_sft(tmp_path / name, callback, **arguments)
        trainer.train()
        return trainer

    plain = train("plain", None)
    watched = train("watched", TrimtabCallback())
    assert bits(watched) == bits(plain)
    loss = journal_of(tmp_path / "watched").column("loss").values
    np.testing.assert_allclose(loss, logged(plain, "loss"), rtol=1e-4)

    recovering = train("recovering", TrimtabCallback(mode="recover"))
    assert bits(recovering) == bits(plain)  # its optimizer is fused without trimtab too
    for name in ("loss", "num_tokens", "entropy"):
        assert logged(recovering, name) == logged(plain, name)


@pytest.mark.parametrize("make", [make_grpo, make_dpo])
def test_a_policy_has_the_same_bits_and_its_own_signals(make: Any, tmp_path: Path) -> None:
    def train(name: str, callback: Any) -> Any:
        transformers.set_seed(0)
        few = {"logging_steps": 1, "per_device_train_batch_size": 4, "max_steps": 6}
        trainer = make(tmp_path / name, callback, **few)
        trainer.train()
        return trainer

    plain = train("plain", None)
    assert bits(train("watched", TrimtabCallback())) == bits(plain)
    journal = journal_of(tmp_path / "watched")
    is_policy = make is make_grpo
    assert journal.column("reward").recorded == is_policy
    if is_policy:
        for name in ("reward_std", "entropy", "response_length", "no_signal_share"):
            assert journal.column(name).recorded
        shown = journal.column("reward").values[1:6]  # at the step after it was logged
        np.testing.assert_allclose(shown, logged(plain, "reward")[:5], rtol=1e-6)
