"""Staging: the pages of the site, with links that work there.

On GitHub a page of `docs/` links to source files, to folders and to pages at the root. The site is
`docs/` only and loads nothing from elsewhere, so each file that a page links to becomes a page
below `project/`: Markdown as it is, a source file as code, a folder as the list of its files.
"""

import os
import re
import shutil
from pathlib import Path, PurePosixPath

_CODE = re.compile(
    r"^(?P<fence>`{3,})[^\n]*\n.*?^(?P=fence)[ ]*$|`[^`\n]*`", re.DOTALL | re.MULTILINE
)
_LINK = re.compile(r"\]\((?P<target>[^)\s#:]+)(?P<anchor>#[^)\s]*)?\)")
_LANGUAGES = {".py": "python", ".toml": "toml", ".json": "json", ".yml": "yaml"}


def stage(root: Path, out: Path) -> None:
    """Write the pages of the site to a folder.

    Args:
        root: The repository.
        out: The folder that Zensical reads.
    """
    shutil.copytree(root / "docs", out)
    shutil.copy(Path(__file__).with_name("site.css"), out)
    waiting = sorted((root / "docs").rglob("*.md"))
    seen = set(waiting)
    while waiting:
        path = waiting.pop()
        text, linked = _page(root, path)
        page = out / _place(root, path)
        page.parent.mkdir(parents=True, exist_ok=True)
        page.write_text(text, encoding="utf-8")
        waiting += sorted(linked - seen)
        seen |= linked


def _page(root: Path, path: Path) -> tuple[str, set[Path]]:
    """The text of a page, and the files outside `docs/` that it links to."""
    if path.is_dir():
        return _folder(root, path), set()
    text = path.read_text(encoding="utf-8")
    if path.suffix != ".md":
        return _source(root, path, text), set()
    linked: set[Path] = set()
    parts: list[str] = []
    start = 0
    for code in _CODE.finditer(text):  # what looks like a link inside code is none
        parts.append(_relink(root, path, text[start : code.start()], linked))
        # In a table GitHub wants \| inside code, and Python's Markdown shows the backslash.
        parts.append(code[0] if code["fence"] else code[0].replace("\\|", "|"))
        start = code.end()
    parts.append(_relink(root, path, text[start:], linked))
    return "".join(parts), linked


def _relink(root: Path, path: Path, text: str, linked: set[Path]) -> str:
    """Point the links of a piece of Markdown at the places that their targets have on the site."""

    def place(link: re.Match[str]) -> str:
        target = Path(os.path.normpath(path.parent / link["target"]))
        if not target.exists():
            raise FileNotFoundError(f"{path}: the link to {link['target']} leads nowhere")
        if root / "docs" not in target.parents:
            linked.add(target)
        here = _place(root, path).parent
        there = PurePosixPath(os.path.relpath(_place(root, target), here))
        return f"]({there}{link['anchor'] or ''})"

    return _LINK.sub(place, text)


def _place(root: Path, path: Path) -> PurePosixPath:
    """Where a file of the repository is on the site."""
    if root / "docs" in path.parents:
        return PurePosixPath(path.relative_to(root / "docs"))
    place = PurePosixPath("project") / path.relative_to(root)
    if path.is_dir():
        return place / "index.md"
    return place if path.suffix == ".md" else place.with_name(f"{place.name}.md")


def _source(root: Path, path: Path, text: str) -> str:
    """A source file as a page."""
    fence = "`" * 6
    language = _LANGUAGES.get(path.suffix, "text")
    return f"{_head(root, path)}{fence}{language}\n{text.rstrip()}\n{fence}\n"


def _folder(root: Path, path: Path) -> str:
    """A folder as a page: the docstring or README that describes it, and its files."""
    about = ""
    if (path / "__init__.py").exists():
        code = (path / "__init__.py").read_text(encoding="utf-8")
        described = re.match(r'"""(.*?)"""', code, re.DOTALL)
        about = described[1].strip() + "\n\n" if described else ""
    files = [item for item in sorted(path.rglob("*")) if item.is_file()]
    names = [str(item.relative_to(path)) for item in files if "__pycache__" not in item.parts]
    return f"{_head(root, path)}{about}" + "".join(f"- `{name}`\n" for name in names)


def _head(root: Path, path: Path) -> str:
    """The title of a page that shows a file; it is not searched."""
    return f"---\nsearch:\n  exclude: true\n---\n\n# {path.relative_to(root)}\n\n"
