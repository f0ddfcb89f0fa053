"""The formats of checkpoints: the keys of every entry, and what reads it, one at a time.

    torch.distributed.checkpoint     .metadata and *.distcp; a tensor is put together of its chunks
    safetensors                      by its header
    torch.save                       with `weights_only=True`, mapped and not read as a whole
    a folder of these                as HF's Trainer writes; DeepSpeed's universal checkpoints

Nothing is unpickled. The metadata of torch.distributed.checkpoint is a pickle, of which names,
sizes and places are read into records of our own, and which may name nothing else (`_Metadata`).
"""

import io
import json
import pickle
import re
import struct
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from math import prod
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from trimtab.core.errors import RestoreError
from trimtab.journal.checkpoints.manifest import MANIFEST, read_manifest
from trimtab.journal.files import inside, open_regular, read_regular

Keys = tuple[str, ...]
Entry = tuple[Keys, Callable[[], Any]]

_FILE = re.compile(r"(?!rng|trimtab|training_args).+\.(safetensors|pt|pth|bin|ckpt)")
"""Files of a folder that are read; others hold random numbers and arguments."""

_DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
    "F8_E4M3": torch.float8_e4m3fn,
}
"""Dtypes by their names in safetensors."""

MAX_HEADER = 2**27


def entries_of(path: Path) -> Iterator[Entry]:
    """Yield the entries of a checkpoint; raises RestoreError, or anything for a damaged file."""
    if not path.exists():
        raise RestoreError(f"{path} does not exist")
    if not path.is_dir():
        yield from _of_file(path)
    elif (path / ".metadata").is_file():
        yield from _of_dcp(path)
        if (path / MANIFEST).is_file():
            saved = read_manifest(path).facts
            yield ("step",), lambda: saved.step
            yield ("data_position",), lambda: saved.data_position
        if (file := path / "trimtab-rank-00000.pt").is_file():
            yield ("buffers",), lambda: _load(file, "buffers")
    elif (folder := path / "zero").is_dir():
        for file in sorted(folder.rglob("*.pt")):
            owner, key = ".".join(file.parent.relative_to(folder).parts), file.stem
            keys = ("model", owner) if key == "fp32" else ("optimizer", "state", owner, key)
            yield keys, partial(_load, file, "param")
    elif any(path.rglob("*_optim_states.pt")):
        raise RestoreError(
            f"{path} is a ZeRO checkpoint, whose flat partitions only DeepSpeed can take apart: "
            "compare what `python -m deepspeed.checkpoint.ds_to_universal` makes of it"
        )
    else:
        for file in sorted(path.iterdir()):
            if _FILE.fullmatch(file.name):
                top = (file.stem,) if file.stem in ("optimizer", "scheduler") else ()
                yield from (((*top, *keys), load) for keys, load in _of_file(file))
            elif file.name == "trainer_state.json":
                step = json.loads(read_regular(file))["global_step"]
                yield ("step",), partial(int, step)


def _of_file(path: Path) -> Iterator[Entry]:
    if path.suffix == ".safetensors":
        yield from _of_safetensors(path)
        return
    for keys, value in leaves(_load(path)):
        yield keys, partial(_given, value)


def _given(value: Any) -> Any:
    return value


def leaves(value: Any) -> Iterator[tuple[Keys, Any]]:
    """Yield the tensors and plain values in nested dicts, and in lists of dicts or tensors."""
    if isinstance(value, list | tuple) and any(isinstance(one, dict | Tensor) for one in value):
        value = dict(enumerate(value))
    if not isinstance(value, Mapping):
        yield (), value
        return
    for key, part in value.items():
        yield from (((str(key), *keys), leaf) for keys, leaf in leaves(part))


def _load(path: Path, key: str = "") -> Any:
    with open_regular(path) as file:  # no link, pipe or device
        is_zip = file.read(2) == b"PK"
    found = torch.load(path, map_location="cpu", weights_only=True, mmap=is_zip)
    return found[key] if key and isinstance(found, dict) else found


def _of_safetensors(path: Path) -> Iterator[Entry]:
    with open_regular(path) as file:
        (size,) = struct.unpack("<Q", file.read(8))
        header = json.loads(file.read(min(size, MAX_HEADER)))
    for name, one in header.items():
        if name != "__metadata__":
            start, end = one["data_offsets"]
            place = (path, 8 + size + start, end - start)
            yield (name,), partial(_raw, *place, _DTYPES[one["dtype"]], one["shape"])


def _raw(path: Path, start: int, size: int, dtype: torch.dtype, shape: list[int]) -> Tensor:
    data = bytearray(_slice(path, start, size))
    flat = torch.frombuffer(data, dtype=dtype) if data else torch.empty(0, dtype=dtype)
    return flat.reshape(shape)


def _slice(path: Path, start: int, size: int) -> bytes:
    with open_regular(path) as file:
        file.seek(start)
        data = file.read(size) if 0 <= size <= path.stat().st_size else b""
    if len(data) != size:
        raise RestoreError(f"{path} is shorter than what it should hold")
    return data


class _Record:
    """Stands for a class of torch in the metadata: it holds what is set, and runs nothing."""

    offset: Any = None
    transform_descriptors: Any = None

    def __init__(self, *values: Any) -> None:
        self.values = values

    def __setstate__(self, state: Any) -> None:
        if isinstance(state, dict):
            self.__dict__.update(state)
        else:
            self.values = state


_CLASSES = {
    "torch.distributed.checkpoint.metadata": (
        *("Metadata", "TensorStorageMetadata", "BytesStorageMetadata", "TensorProperties"),
        *("ChunkStorageMetadata", "MetadataIndex", "StorageMeta", "_MEM_FORMAT_ENCODING"),
    ),
    "torch.distributed.checkpoint.filesystem": ("_StorageInfo",),
    "torch.serialization": ("_get_layout",),
    "pathlib": ("PosixPath",),
}
_ALLOWED: dict[tuple[str, str], Any] = {
    **{(module, name): _Record for module, names in _CLASSES.items() for name in names},
    **{("torch", str(dtype).removeprefix("torch.")): dtype for dtype in _DTYPES.values()},
    # How Python before 3.11.4 pickles an enumeration; nothing is looked up.
    ("builtins", "getattr"): lambda owner, name: None,
    ("torch", "Size"): tuple,
    ("collections", "OrderedDict"): dict,
}
"""All that the metadata may name, and what we make of it."""


class _Metadata(pickle.Unpickler):
    """Reads the metadata without any class or function that it names."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _ALLOWED:
            raise RestoreError(f"its metadata names {module[:80]}.{name[:80]}, which is not loaded")
        return _ALLOWED[module, name]


def _of_dcp(folder: Path) -> Iterator[Entry]:
    found = _Metadata(io.BytesIO(read_regular(folder / ".metadata"))).load()
    stored = {(index.fqn, index.offset): info for index, info in found.storage_data.items()}
    for name, one in found.state_dict_metadata.items():
        keys = tuple(map(str, (found.planner_data or {}).get(name, (name,))))
        if hasattr(one, "chunks"):
            parts = [(chunk, stored[name, chunk.offsets]) for chunk in one.chunks]
            yield keys, partial(_assemble, folder, one.properties.values[0], one.size, parts)
        else:
            yield keys, partial(_stored, folder, stored[name, None])


def _stored(folder: Path, info: Any) -> Any:
    if info.transform_descriptors:
        raise RestoreError(f"{folder} is compressed, and cannot be compared")
    data = _slice(inside(folder, info.relative_path), info.offset, info.length)
    return torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)


def _assemble(folder: Path, dtype: torch.dtype, size: Any, parts: list[tuple[Any, Any]]) -> Tensor:
    count = sum(prod(chunk.sizes) for chunk, _ in parts)
    if count != prod(size) or sum(info.length for _, info in parts) < count * dtype.itemsize:
        raise RestoreError(f"{folder} has a tensor whose chunks do not make it up")
    whole = torch.empty(size, dtype=dtype)
    for chunk, info in parts:
        ends = zip(chunk.offsets, chunk.sizes, strict=True)
        place = tuple(slice(first, first + extent) for first, extent in ends)
        whole[place].copy_(_stored(folder, info))
    return whole
