"""Find the token files under some paths, and open each by its format."""

from collections.abc import Iterable
from pathlib import Path

from trimtab.core.errors import CorpusError
from trimtab.corpus.files.arrow import ArrowFile, ParquetFile
from trimtab.corpus.files.flat import FlatFile, open_bin, open_npy
from trimtab.corpus.files.jsonl import JsonLinesFile
from trimtab.corpus.files.megatron import open_megatron
from trimtab.corpus.options import ScanOptions

TokenFile = FlatFile | ParquetFile | ArrowFile | JsonLinesFile

SUFFIXES = (".bin", ".npy", ".parquet", ".arrow", ".jsonl")


def find_files(paths: Iterable[Path]) -> list[tuple[Path, str]]:
    """The token files at these paths and in these folders, each with its source.

    The source of a file in a folder is the subfolder, or the folder itself; that of a file is its
    name without the suffix.
    """
    found: dict[Path, str] = {}
    for path in paths:
        if path.is_dir():
            files = sorted(p for p in path.rglob("*") if p.suffix in SUFFIXES and p.is_file())
            if not files:
                raise CorpusError(
                    f"{path} holds no {', '.join(SUFFIXES)}; give files of tokens or text"
                )
            for file in files:
                inner = file.relative_to(path).parts
                found.setdefault(file, inner[0] if len(inner) > 1 else path.resolve().name)
        elif path.is_file():
            found.setdefault(path, path.stem)
        else:
            raise CorpusError(f"{path} does not exist; check the path")
    return list(found.items())


def open_file(path: Path, options: ScanOptions) -> TokenFile:
    """Open a file by its suffix, and check its header and size."""
    try:
        match path.suffix:
            case ".bin":
                index = path.with_suffix(".idx")
                if index.exists():
                    return open_megatron(path, index)
                return open_bin(path, options.dtype, options.separator)
            case ".npy":
                return open_npy(path, options.separator)
            case ".parquet":
                return ParquetFile(path=path)
            case ".arrow":
                return ArrowFile(path=path)
            case ".jsonl":
                return JsonLinesFile(path=path)
    except OSError as error:
        raise CorpusError(f"{path} cannot be read: {error}") from error
    raise CorpusError(f"{path} is none of {', '.join(SUFFIXES)}; give files of these kinds")
