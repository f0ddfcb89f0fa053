"""Damage to files, at random places."""

import random
from pathlib import Path


def files_of(folder: Path) -> list[Path]:
    return [path for path in sorted(folder.rglob("*")) if path.is_file()]


def damage(path: Path, dice: random.Random) -> None:
    """Flip a bit, cut the file short, lengthen it, or remove it."""
    data = bytearray(path.read_bytes())
    match dice.choice(["flip", "flip", "cut", "lengthen", "remove"]):
        case "flip":
            place = dice.randrange(len(data))
            data[place] ^= 1 << dice.randrange(8)
            path.write_bytes(bytes(data))
        case "cut":
            path.write_bytes(bytes(data[: dice.randrange(len(data))]))
        case "lengthen":
            path.write_bytes(bytes(data) + b"x")
        case "remove":
            path.unlink()
