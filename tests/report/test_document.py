"""A document says the same in Markdown and in HTML, and text of a log stays text in both."""

import re

import pytest
from tests.report.pages.hostile import PAYLOADS

from trimtab.core.escaping import Html
from trimtab.report.document import (
    BulletList,
    Code,
    CodeBlock,
    Figure,
    ListItem,
    Paragraph,
    ReportDocument,
    ReportSection,
    ReportTable,
    RichText,
    Strong,
    bullets,
    prose,
    section_html,
    to_markdown,
)

SECTION = ReportSection(
    "Section",
    (
        Paragraph(("A ", Strong("bold"), " word, ", Code("code"), ", and 1 * 2 <b>.")),
        ReportTable(("a", "b"), (("x | y", "2"),), frozenset({1})),
        BulletList((ListItem("first", ("inner",)),), is_numbered=True),
        bullets(["other"]),
        CodeBlock(("trimtab <x>",)),
    ),
)


def markdown_of(section: ReportSection, *, with_figures: bool = False) -> str:
    figure = Figure("A figure", "figure.svg", lambda _: Html("<svg></svg>"))
    document = ReportDocument(title="Title", lead="Lead.", sections=(section,), figures=(figure,))
    return to_markdown(document, with_figures=with_figures)


def test_markdown() -> None:
    assert (
        markdown_of(SECTION)
        == """# Title

Lead.

## Section

A **bold** word, `code`, and 1 \\* 2 &lt;b>.

| a | b |
| --- | ---: |
| x \\| y | 2 |

1. first
   - inner

- other

```
trimtab <x>
```
"""
    )


def test_html() -> None:
    page = section_html(SECTION)
    assert "<p>A <strong>bold</strong> word, <code>code</code>, and 1 * 2 &lt;b&gt;.</p>" in page
    assert '<td data-name="a">x | y</td><td class="n" data-name="b">2</td>' in page
    assert "<ol><li>first<ul><li>inner</li></ul></li></ol><ul><li>other</li></ul>" in page
    assert "<pre><code>trimtab &lt;x&gt;</code></pre>" in page


def test_figures_are_linked_where_their_files_are() -> None:
    assert "![A figure](figure.svg)" in markdown_of(SECTION, with_figures=True)
    assert "figure.svg" not in markdown_of(SECTION)


@pytest.mark.parametrize("payload", PAYLOADS)
def test_hostile_text_stays_text(payload: str) -> None:
    texts: list[RichText] = [payload, (Strong(payload), Code(payload)), prose(payload)]
    section = ReportSection(
        payload,
        (
            *map(Paragraph, texts),
            bullets(texts),
            ReportTable((payload,), tuple((text,) for text in texts)),
            CodeBlock((payload,)),
        ),
    )
    lines = markdown_of(section).splitlines()
    assert len(lines) == len(markdown_of(SECTION).splitlines()) + 5  # no line was added or split
    before_code = lines[: lines.index("```")]
    rows = [line for line in before_code if line.startswith("| ")]
    assert all(len(re.findall(r"(?<!\\)\|", row)) == 2 for row in rows)
    outside_code = re.sub(r"`[^`]*`", "", "\n".join(before_code))
    assert "<" not in outside_code
    page = section_html(section)
    known = "p|strong|code|ul|li|div|table|thead|tbody|tr|th|td|pre"
    assert re.sub(rf"</?({known})\b[^<>]*>", "", page).count("<") == 0


def test_a_sentence_may_hold_code() -> None:
    assert prose("Announce it (`trimtab note`).") == (
        "Announce it (",
        Code("trimtab note"),
        ").",
    )
    assert prose("a lone ` is text") == ("a lone ` is text",)
