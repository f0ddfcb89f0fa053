"""A document as a tree of values, and its Markdown and HTML.

A post-mortem is built once and rendered to each format. Strings in the tree are plain text: the
renderers escape all of them, so a name from a log cannot become markup, whatever it holds. Markup
is only what the types say: `Strong`, `Code`, a table, a list.

    ReportDocument(title, lead, figures, sections)
        ReportSection(title, contents)
            Paragraph | BulletList | ReportTable | CodeBlock
"""

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from trimtab.core.escaping import Html, escape_markdown, html, html_table, join, tag
from trimtab.core.text import printable


@dataclass(frozen=True, slots=True)
class Strong:
    """Words set in bold."""

    text: str


@dataclass(frozen=True, slots=True)
class Code:
    """Words set as code, such as a command."""

    text: str


RichText = str | tuple[str | Strong | Code, ...]
"""One line of text: plain, or in pieces of which some are bold or code."""


@dataclass(frozen=True, slots=True)
class Paragraph:
    """One paragraph."""

    text: RichText


@dataclass(frozen=True, slots=True)
class ListItem:
    """One item of a list, with the items of a list inside it."""

    text: RichText
    inner: tuple[RichText, ...] = ()


@dataclass(frozen=True, slots=True)
class BulletList:
    """A list."""

    items: tuple[ListItem, ...]
    is_numbered: bool = False


@dataclass(frozen=True, slots=True)
class ReportTable:
    """A table; each row has as many cells as `head`."""

    head: tuple[str, ...]
    rows: tuple[tuple[RichText, ...], ...]
    numeric: frozenset[int] = frozenset()
    """Columns of numbers, which are right-aligned: the places in `head`, from 0."""


@dataclass(frozen=True, slots=True)
class CodeBlock:
    """Lines of code, or of text whose columns are aligned."""

    lines: tuple[str, ...]


Content = Paragraph | BulletList | ReportTable | CodeBlock


@dataclass(frozen=True, slots=True)
class ReportSection:
    """A heading with what stands under it."""

    title: str
    contents: tuple[Content, ...]


@dataclass(frozen=True, slots=True)
class Figure:
    """A drawing: a file beside the document in Markdown, inside the page in HTML."""

    title: str
    file: str
    """The name of its file."""
    draw: Callable[[bool], Html]
    """Draws the SVG: as a file of its own (True), or as a part of a page (False)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportDocument:
    """A whole document."""

    title: str
    lead: RichText
    """What it says in two or three sentences."""
    sections: tuple[ReportSection, ...]
    figures: tuple[Figure, ...] = ()


def bullets(lines: Iterable[RichText]) -> BulletList:
    return BulletList(tuple(map(ListItem, lines)))


def prose(sentence: str) -> RichText:
    """Return a sentence in which words between backticks are code.

    A sentence of a plug-in may hold anything: everything but the code stays plain text.
    """
    parts = re.split(r"`([^`]+)`", sentence)
    return tuple(Code(text) if place % 2 else text for place, text in enumerate(parts) if text)


# Markdown


def to_markdown(document: ReportDocument, *, with_figures: bool) -> str:
    """Return the document as Markdown; `with_figures` if their files are written beside it."""
    parts = [f"# {escape_markdown(document.title)}", _markdown_text(document.lead)]
    if with_figures:
        parts += [f"![{escape_markdown(one.title)}]({one.file})" for one in document.figures]
    for section in document.sections:
        parts.append(f"## {escape_markdown(section.title)}")
        parts += ["\n".join(_markdown_content(content)) for content in section.contents]
    return "\n\n".join(parts) + "\n"


def _markdown_content(content: Content) -> Iterator[str]:
    match content:
        case Paragraph(text):
            yield _markdown_text(text)
        case CodeBlock(lines):
            # A fence ends where a line begins with one; printable text holds no line break.
            yield from ("```", *(printable(line).replace("```", "'''") for line in lines), "```")
        case BulletList(items, is_numbered):
            for place, item in enumerate(items, start=1):
                yield f"{f'{place}.' if is_numbered else '-'} {_markdown_text(item.text)}"
                yield from (f"   - {_markdown_text(line)}" for line in item.inner)
        case ReportTable(head, rows, numeric):
            yield _markdown_row(map(escape_markdown, head))
            yield _markdown_row("---:" if at in numeric else "---" for at in range(len(head)))
            yield from (_markdown_row(map(_markdown_text, row)) for row in rows)


def _markdown_row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _markdown_text(line: RichText) -> str:
    return "".join(map(_markdown_span, (line,) if isinstance(line, str) else line))


def _markdown_span(span: str | Strong | Code) -> str:
    match span:
        case Strong(text):
            return f"**{escape_markdown(text)}**"
        case Code(text):
            # Code cannot be escaped in Markdown, only kept from ending early or splitting a cell.
            return f"`{printable(text).replace('`', '?').replace('|', '?')}`"
        case _:
            return escape_markdown(span)


# HTML


def section_html(section: ReportSection) -> Html:
    return join(map(_html_content, section.contents))


def text_html(line: RichText) -> Html:
    return join(map(_html_span, (line,) if isinstance(line, str) else line))


def _html_content(content: Content) -> Html:
    match content:
        case Paragraph(text):
            return tag("p", text_html(text))
        case CodeBlock(lines):
            return tag("pre", tag("code", Html("\n".join(map(html, lines)))))
        case BulletList(items, is_numbered):
            return tag("ol" if is_numbered else "ul", *map(_html_item, items))
        case ReportTable(head, rows, numeric):
            cells = [[text_html(cell) for cell in row] for row in rows]
            return html_table(head, cells, numeric=numeric)


def _html_item(item: ListItem) -> Html:
    inner = [tag("li", text_html(line)) for line in item.inner]
    return tag("li", text_html(item.text), *([tag("ul", *inner)] if inner else []))


def _html_span(span: str | Strong | Code) -> Html:
    match span:
        case Strong(text):
            return tag("strong", text)
        case Code(text):
            return tag("code", text)
        case _:
            return html(span)
