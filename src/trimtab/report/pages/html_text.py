"""Pieces of HTML whose text is escaped. Only these functions turn text of a log into HTML."""

from collections.abc import Iterable, Sequence
from html import escape

from trimtab.report.escaping import printable


class Html(str):
    """HTML that we made: its text is escaped already."""

    __slots__ = ()


Text = str | Html
"""Any text, escaped when it is used; or HTML, used as it is."""


def html(text: Text) -> Html:
    """The text as HTML."""
    return text if isinstance(text, Html) else Html(escape(printable(text)))


def tag(name: str, *content: Text, **attributes: str | None) -> Html:
    """An element; attributes that are None are left out, and `class_` is class."""
    given = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escape(printable(value))}"'
        for key, value in attributes.items()
        if value is not None
    )
    return Html(f"<{name}{given}>{join(content)}</{name}>")


def join(parts: Iterable[Text]) -> Html:
    """The parts one after the other."""
    return Html("".join(map(html, parts)))


def table(
    head: Sequence[str], rows: Iterable[Sequence[Text]], *, numeric: Iterable[int] = (), **more: str
) -> Html:
    """A table that scrolls by itself where the page is narrow; `numeric` columns end at the right.

    Each cell carries the name of its column, for narrow pages that show rows as cards.
    """
    right = set(numeric)
    kinds = ["n" if place in right else None for place in range(len(head))]
    cells = [
        tag("th", text, scope="col", class_=kind) for text, kind in zip(head, kinds, strict=True)
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
    return tag(
        "div", inner, class_="scroll", tabindex="0", role="region", aria_label=", ".join(head)
    )


def facts_list(facts: Iterable[tuple[str, Text]]) -> Html:
    """Names and values in one dense line."""
    return tag(
        "dl",
        *(
            tag("div", tag("dt", name), tag("dd", value, id=f"fact-{name.replace(' ', '-')}"))
            for name, value in facts
        ),
        class_="facts",
    )
