"""Text from logs made safe to show: in a terminal, in Markdown, in HTML and in SVG.

Names of runs, signals, files and tokens are untrusted: they may hold terminal escapes, markup or a
whole table row. Only the functions of this module turn such text into Markdown, HTML or SVG.
"""

from collections.abc import Iterable, Sequence
from html import escape

from trimtab.core.text import printable

_MARKDOWN = str.maketrans({char: f"\\{char}" for char in "\\`*[]|#"} | {"<": "&lt;", "&": "&amp;"})


def escape_markdown(text: str) -> str:
    """Return Markdown that shows the text, with none of it read as markup."""
    return printable(text).translate(_MARKDOWN)


class Html(str):
    """HTML or SVG that trimtab made: the text in it is escaped already."""

    __slots__ = ()


Text = str | Html
"""Any text, which is escaped when it is used; or HTML, which is used as it is."""


def html(text: Text) -> Html:
    """Return the text as HTML; HTML is returned as it is."""
    return text if isinstance(text, Html) else Html(escape(printable(text)))


def tag(name: str, *content: Text, **attributes: str | float | None) -> Html:
    """Return an element, as in `tag("td", "0.5", class_="n", data_name="loss")`.

    Attributes that are None are left out; `_` in a name is written as `-`. Floats have one decimal,
    which is a tenth of a pixel in SVG.
    """
    given = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{_attribute(value)}"'
        for key, value in attributes.items()
        if value is not None
    )
    return Html(f"<{name}{given}>{join(content)}</{name}>")


def join(parts: Iterable[Text]) -> Html:
    """Return the parts as HTML, one after the other."""
    return Html("".join(map(html, parts)))


def html_table(
    head: Sequence[str], rows: Iterable[Sequence[Text]], *, numeric: Iterable[int] = (), **more: str
) -> Html:
    """Return a table that scrolls by itself on a narrow page; `numeric` columns are right-aligned.

    Each cell carries the name of its column, for narrow pages that show rows as cards.
    """
    right = set(numeric)
    kinds = ["n" if index in right else None for index in range(len(head))]
    cells = [
        tag("th", text, scope="col", class_=kind) if text else tag("td")
        for text, kind in zip(head, kinds, strict=True)
    ]
    body = [
        tag(
            "tr",
            *(
                tag("td", cell, class_=kind, data_name=name)
                for cell, kind, name in zip(row, kinds, head, strict=True)
            ),
        )
        for row in rows
    ]
    inner = tag("table", tag("thead", tag("tr", *cells)), tag("tbody", *body), **more)
    label = ", ".join(filter(None, head)) or "facts"
    return tag("div", inner, class_="scroll", tabindex="0", role="group", aria_label=label)


def _attribute(value: str | float) -> str:
    return escape(printable(value)) if isinstance(value, str) else f"{value:.1f}"
