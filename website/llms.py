"""llms.txt: the pages of the docs for a language model, each with its address and its first line.

Made from the navigation and the pages, as https://llmstxt.org describes; it stands beside them.
"""

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
MAX_CHARS = 220

_HEAD = """# trimtab

> A flight recorder for PyTorch training runs: finds loss spikes, NaNs and divergence in logs and
> live runs, says why, drops bad updates and restores weights that were corrupted. Reads the log of
> any trainer, without a GPU.

A verdict in one line of JSON: `trimtab diagnose LOG --brief`. Tools: `trimtab mcp FOLDER`.
"""


def llms_text() -> str:
    """Return the whole file."""
    config = tomllib.loads((ROOT / "zensical.toml").read_text(encoding="utf-8"))
    parts = [_HEAD]
    for section in config["project"]["nav"]:
        ((title, pages),) = section.items()
        lines = [_line(page) for page in _pages(pages) if not page.startswith("project/")]
        if lines:
            parts.append(f"## {title}\n\n" + "\n".join(lines) + "\n")
    return "\n".join(parts)


def _pages(nav: Any) -> Iterator[str]:
    if isinstance(nav, str):
        yield nav
    else:
        for part in nav.values() if isinstance(nav, dict) else nav:
            yield from _pages(part)


def _line(page: str) -> str:
    """Return the link to a page with its title and its first sentence."""
    text = (DOCS / page).read_text(encoding="utf-8")
    text = re.sub(r"(?s)\A---\n.*?\n---\n", "", text)
    title = re.search(r"(?m)^# (.+)$", text)
    body = re.sub(r"(?ms)^```.*?^```|^<.*?>$|^!\[.*?$", "", text[title.end() if title else 0 :])
    first = next((part for part in body.split("\n\n") if re.match(r"\s*[A-Z`*\[]", part)), "")
    first = re.sub(r"\s\(\[[^]]*\]\([^)]*\)\)", "", first)  # a link to more, not of the sentence
    plain = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", " ".join(first.split()))
    sentence = re.split(r"(?<=\.) ", plain)[0].rstrip(":")[:MAX_CHARS]
    return f"- [{title[1] if title else page}]({page}): {sentence}"
