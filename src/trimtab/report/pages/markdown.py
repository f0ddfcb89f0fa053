"""The Markdown that trimtab writes, as HTML: paragraphs, lists, tables and code, no more.

It reads only what our own post-mortems write, where all text of a log is escaped. Nothing of a log
becomes markup here either: whatever is not one of our forms is text.
"""

import re
from collections.abc import Iterable, Iterator, Sequence

from trimtab.report.pages.html_text import Html, html, join, table, tag

_CELLS = re.compile(r"(?<!\\)\|")
_ESCAPED = re.compile(r"\\([\\`*\[\]|#])|&(lt|amp);")
_INLINE = re.compile(r"(?<!\\)(\*\*(?P<bold>.+?)(?<!\\)\*\*|`(?P<code>[^`]+)`)")
_LINK = re.compile(r"\[figure\]\([\w.-]+\)")
_NAMES = {"lt": "<", "amp": "&"}


def to_html(lines: Iterable[str]) -> Html:
    """The lines of a section as HTML."""
    return join(_blocks([line.rstrip() for line in lines]))


def _blocks(lines: Sequence[str]) -> Iterator[Html]:
    at = 0
    while at < len(lines):
        line = lines[at]
        end = at + 1
        if line.startswith("```"):
            while end < len(lines) and not lines[end].startswith("```"):
                end += 1
            yield tag("pre", tag("code", Html("\n".join(map(html, lines[at + 1 : end])))))
            end += 1
        elif line.startswith("|"):
            while end < len(lines) and lines[end].startswith("|"):
                end += 1
            yield _table(lines[at:end])
        elif re.match(r"- |\d+\. ", line):
            while end < len(lines) and re.match(r"- |\d+\. |   - ", lines[end]):
                end += 1
            yield _list(lines[at:end])
        elif line:
            yield tag("p", inline(line))
        at = end


def _table(lines: Sequence[str]) -> Html:
    rows = [[inline(cell.strip()) for cell in _CELLS.split(line)[1:-1]] for line in lines]
    marks = _CELLS.split(lines[1])[1:-1] if len(lines) > 1 else []
    numeric = [place for place, mark in enumerate(marks) if mark.strip() == "---:"]
    width = len(rows[0])
    whole = [row for row in rows[2:] if len(row) == width]
    return table(
        [_plain(cell.strip()) for cell in _CELLS.split(lines[0])[1:-1]], whole, numeric=numeric
    )


def _list(lines: Sequence[str]) -> Html:
    items: list[tuple[str, list[str]]] = []
    for line in lines:
        if line.startswith("   - ") and items:
            items[-1][1].append(line[5:])
        else:
            items.append((re.sub(r"^(- |\d+\. )", "", line), []))
    kind = "ul" if lines[0].startswith("- ") else "ol"
    return tag(
        kind,
        *(
            tag("li", inline(text), tag("ul", *(tag("li", inline(i)) for i in inner)))
            if inner
            else tag("li", inline(text))
            for text, inner in items
        ),
    )


def inline(text: str) -> Html:
    """One line of text with bold and code."""
    text = _LINK.sub("figure above", text)
    parts: list[Html] = []
    at = 0
    for found in _INLINE.finditer(text):
        parts.append(html(_plain(text[at : found.start()])))
        bold, code = found["bold"], found["code"]
        parts.append(tag("strong", _plain(bold)) if bold else tag("code", code))
        at = found.end()
    parts.append(html(_plain(text[at:])))
    return join(parts)


def _plain(text: str) -> str:
    """The text without the escapes of Markdown."""
    return _ESCAPED.sub(lambda found: found[1] or _NAMES[found[2]], text)
