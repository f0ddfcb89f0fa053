"""Copies to the host: on the stream that computes, or beside it."""

from contextlib import nullcontext
from typing import Any

import pytest
import torch

from trimtab.state.host_copy import CopyToHost, SideStream


class FakeStream:
    """A stream of a device that is not there: notes what it is asked for."""

    def __init__(self, calls: list[str], name: str) -> None:
        self._calls, self._name = calls, name

    def wait_stream(self, other: "FakeStream") -> None:
        self._calls.append(f"{self._name} waits for {other._name}")

    def record_event(self) -> str:
        self._calls.append(f"event of {self._name}")
        return self._name

    def wait_event(self, event: str) -> None:
        self._calls.append(f"{self._name} waits for the event of {event}")


def test_host_memory_is_copied_at_once() -> None:
    aside, copies = SideStream(), CopyToHost()
    source = torch.arange(4.0)
    found = copies.copy({"x": source})
    assert copies.finish(aside) == 16
    source.zero_()
    assert found["x"].data.tolist() == [0.0, 1.0, 2.0, 3.0]
    assert not aside.is_busy


def test_copies_aside_begin_after_the_update_and_end_before_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls: list[str] = []
    monkeypatch.setattr(torch.cuda, "Stream", lambda device: FakeStream(calls, "side"))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: FakeStream(calls, "main"))
    monkeypatch.setattr(torch.cuda, "stream", nullcontext)
    monkeypatch.setattr(
        torch.Tensor, "record_stream", lambda self, stream: calls.append("memory is held")
    )
    aside, device = SideStream(), torch.device("cuda:0")
    source, target = torch.ones(3), torch.zeros(3)
    aside.copy(device, [target], [source])
    assert torch.equal(source, target)
    assert aside.is_busy
    assert calls == ["side waits for main", "memory is held", "event of side"]
    calls.clear()
    aside.join()
    aside.join()
    assert calls == ["main waits for the event of side"]
    assert not aside.is_busy


def test_a_copy_reuses_its_buffers() -> None:
    first, second = CopyToHost(), CopyToHost()
    before: Any = first.copy([torch.ones(3)])
    first.finish()
    after: Any = second.copy([torch.zeros(3)], before)
    second.finish()
    assert after[0] is before[0]
    assert after[0].data.tolist() == [0.0] * 3
