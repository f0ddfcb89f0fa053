"""Copies of nested containers of tensors: to host memory, and back into the same tensors.

A copy keeps the structure (dicts, lists, tuples) and replaces each tensor by a `HostTensor`. Taking
a copy again reuses its buffers, which are pinned where there is a GPU. Restoring it writes into the
existing tensors and containers: DDP buckets, compiled graphs, fused optimizer state and user code
keep references to them.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from trimtab.state.sharded_types import is_dtensor

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor


def local(tensor: torch.Tensor) -> torch.Tensor:
    """The part of a tensor that this rank holds."""
    return tensor.to_local() if is_dtensor(tensor) else tensor


def detached(tensor: torch.Tensor) -> torch.Tensor:
    """Return the same part without its graph, to copy from and into."""
    part = local(tensor)
    return part.detach() if part.requires_grad else part


def version_of(tensor: torch.Tensor) -> int:
    """Return how often a tensor was written to; tensors of `torch.inference_mode` do not count."""
    return 0 if tensor.is_inference() else tensor._version


class WriteCount(NamedTuple):
    """A tensor's version and address: another one of either means that code has written it."""

    version: int
    address: int


def write_count(tensor: torch.Tensor) -> WriteCount:
    """Return what torch has counted of a tensor, without reading it."""
    held = local(tensor)  # a DTensor does not count what is written to it
    # Sparse tensors and subclasses that wrap others have no memory of their own.
    has_address = held.layout is torch.strided and type(held) in WITH_MEMORY
    return WriteCount(version_of(held), held.data_ptr() if has_address else 0)


WITH_MEMORY = (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)

_PLAIN = (int, float, complex, str, bytes, bool, type(None), torch.dtype, torch.device)


@dataclass(frozen=True, slots=True, kw_only=True)
class HostTensor:
    """One tensor in host memory."""

    like: torch.Tensor
    """Shape, strides and dtype, on the meta device."""
    data: torch.Tensor
    device: torch.device
    """Where the tensor was, to make it again if it has been lost."""
    template: DTensor | None
    """For a shard: a tensor with the same mesh and placements, without its values."""

    def matches(self, tensor: torch.Tensor) -> bool:
        """Whether the values fit into a (local) tensor."""
        return tensor.shape == self.like.shape and tensor.dtype == self.like.dtype


class SideStream:
    """Copies to the host beside what an accelerator computes, until `join`."""

    def __init__(self) -> None:
        self._streams: dict[torch.device, torch.cuda.Stream] = {}
        self._copied: dict[torch.device, torch.cuda.Event] = {}

    @property
    def is_busy(self) -> bool:
        """Whether copies were begun that nothing has waited for."""
        return bool(self._copied)

    def copy(
        self, device: torch.device, into: list[torch.Tensor], out_of: list[torch.Tensor]
    ) -> None:
        """Begin to copy tensors of a device as they are now; they must stay so until `join`."""
        stream = self._streams.get(device) or torch.cuda.Stream(device)
        self._streams[device] = stream
        stream.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(stream):
            torch._foreach_copy_(into, out_of, non_blocking=True)
        for source in out_of:
            source.record_stream(stream)  # its memory is not given away before
        self._copied[device] = stream.record_event()

    def join(self) -> None:
        """Let what a device computes from here on wait for the copies; the host does not."""
        for device, event in self._copied.items():
            torch.cuda.current_stream(device).wait_event(event)
        self._copied.clear()


class _Copies:
    """Tensors to copy into others, all at once: grouped so that each group takes one kernel."""

    def __init__(self) -> None:
        self._targets: list[torch.Tensor] = []
        self._sources: list[torch.Tensor] = []

    @torch.no_grad()
    def finish(self, aside: SideStream | None = None) -> int:
        """Copy the values, those of an accelerator `aside`; return the number of bytes."""
        groups: dict[Any, tuple[list[torch.Tensor], list[torch.Tensor]]] = {}
        for target, source in zip(self._targets, self._sources, strict=True):
            key = (target.dtype, target.device, source.device)
            into, out_of = groups.setdefault(key, ([], []))
            into.append(target)
            out_of.append(source)
        for (_, _, device), (into, out_of) in groups.items():
            if aside is not None and device.type == "cuda":
                aside.copy(device, into, out_of)
            else:
                # On the stream that computes: what is written later waits, and the host does not.
                torch._foreach_copy_(into, out_of, non_blocking=True)
        return sum(target.nbytes for target in self._targets)


class CopyToHost(_Copies):
    """Copies one state to the host; reuses the buffers of an earlier copy of the same structure."""

    def copy(self, value: Any, reuse: Any = None) -> Any:
        """Return the structure of `value` with host tensors; their values arrive with `finish`."""
        if isinstance(value, torch.Tensor):
            return self._copy_tensor(value, reuse)
        if isinstance(value, Mapping):
            kept = reuse if isinstance(reuse, Mapping) else {}
            return {k: self.copy(v, kept.get(k)) for k, v in value.items()}
        if isinstance(value, list | tuple):
            fits = isinstance(reuse, list | tuple) and len(reuse) == len(value)
            old = reuse if fits else [None] * len(value)
            parts = [self.copy(v, o) for v, o in zip(value, old, strict=True)]
            return parts if isinstance(value, list) else _tuple_like(value, parts)
        return value if isinstance(value, _PLAIN) else copy.deepcopy(value)

    def _copy_tensor(self, tensor: torch.Tensor, reuse: Any) -> HostTensor:
        local = detached(tensor)
        if isinstance(reuse, HostTensor) and reuse.matches(local):
            host: HostTensor = reuse
        else:
            host = HostTensor(
                like=torch.empty_like(local, device="meta", requires_grad=False),
                data=torch.empty_like(
                    local, device="cpu", requires_grad=False, pin_memory=local.is_cuda
                ),
                device=local.device,
                template=_template(tensor),
            )
        self._targets.append(host.data)
        self._sources.append(local)
        return host


class CopyToLive(_Copies):
    """Restores a copy into the tensors and containers that it was taken from."""

    def restore(self, saved: Any, live: Any) -> Any:
        """Return what belongs in the place of `live`: the same object wherever it can be kept.

        Entries that did not exist when the copy was taken are removed; lost ones are made again.
        """
        if isinstance(saved, HostTensor):
            fits = isinstance(live, torch.Tensor) and saved.matches(detached(live))
            tensor: torch.Tensor = live if fits else _recreate(saved)
            self._targets.append(detached(tensor))
            self._sources.append(saved.data)
            return tensor
        if isinstance(saved, Mapping):
            target: MutableMapping[Any, Any] = live if isinstance(live, MutableMapping) else {}
            for key in [key for key in target if key not in saved]:
                del target[key]
            for key, value in saved.items():
                target[key] = self.restore(value, target.get(key))
            return target
        if isinstance(saved, list | tuple):
            fits = isinstance(live, list | tuple) and len(live) == len(saved)
            old = live if fits else [None] * len(saved)
            parts = [self.restore(value, part) for value, part in zip(saved, old, strict=True)]
            if isinstance(saved, tuple):
                return _tuple_like(saved, parts)
            if isinstance(live, list):
                live[:] = parts
                return live
            return parts
        return saved if isinstance(saved, _PLAIN) else copy.deepcopy(saved)


def _template(tensor: torch.Tensor) -> DTensor | None:
    if not is_dtensor(tensor):
        return None
    empty = torch.empty_like(tensor.to_local(), device="meta", requires_grad=False)
    return type(tensor).from_local(
        empty,
        tensor.device_mesh,
        tensor.placements,
        run_check=False,
        shape=tensor.shape,
        stride=tensor.stride(),
    )


def _recreate(saved: HostTensor) -> torch.Tensor:
    """A tensor for values whose own tensor has been lost."""
    local = torch.empty_like(saved.like, device=saved.device)
    if saved.template is None:
        return local
    return type(saved.template).from_local(
        local,
        saved.template.device_mesh,
        saved.template.placements,
        run_check=False,
        shape=saved.template.shape,
        stride=saved.template.stride(),
    )


def _tuple_like(like: Any, parts: list[Any]) -> Any:
    return type(like)(*parts) if hasattr(like, "_fields") else tuple(parts)
