"""What the packages of trainers write today is what the readers' fixtures hold."""

from pathlib import Path

import pytest
from tests.readers.make_fixtures import FIXTURES, make_anew
from tests.readers.shapes import values
from tests.readers.written import ROWS, SECOND, assert_reads_back

from trimtab.readers import read_log


def test_the_csv_logger_of_lightning(tmp_path: Path) -> None:
    pytest.importorskip("lightning")
    make_anew("lightning", tmp_path)
    assert_reads_back(read_log(tmp_path).block, SECOND)


def test_the_trainer_of_hugging_face(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    make_anew("hf", tmp_path)
    for name in ("every_1.json", "every_2.json"):
        anew, kept = read_log(tmp_path / name).block, read_log(FIXTURES / "hf" / name).block
        assert anew.step.tolist() == kept.step.tolist()
        for signal in ("loss", "grad_norm", "lr"):
            assert values(anew, signal) == pytest.approx(values(kept, signal), nan_ok=True)


def test_the_writer_of_tensorboard_and_its_own_reader_agree(tmp_path: Path) -> None:
    stock = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    make_anew("tensorboard", tmp_path)
    block = read_log(tmp_path).block
    assert_reads_back(block, ROWS)
    accumulator = stock.EventAccumulator(str(tmp_path), size_guidance={"scalars": 0, "tensors": 0})
    accumulator.Reload()
    old = [(e.step, e.value) for e in accumulator.Scalars("train/loss")]
    new = [(e.step, e.tensor_proto.float_val[0]) for e in accumulator.Tensors("train/loss")]
    ours = zip(block.step.tolist(), block.column("loss").values.tolist(), strict=True)
    assert str(sorted(old + new, key=str)) == str(sorted(ours, key=str))
