"""Card: a value as HTML in the cell of a notebook; no script, and no style outside of the card.

Colours are mixed with the text colour of the notebook, so they fit its light or dark theme in
Jupyter, VS Code, Colab and on a plain page, whatever the system prefers.
"""

from collections.abc import Iterable

from trimtab.core.escaping import Html, Text, tag

MAX_BYTES = 150_000
"""Size of a card, about. Chosen: a notebook with a hundred of them still opens."""

MAX_CHARS = 1000
"""Characters of one text; a log may hold longer ones."""

_STYLE = Html(
    ".trimtab{--ink:currentColor;--alarm:#d64537;--warn:#b07a1a;--good:#3a9160;--data:#4c86d8;"
    "--mute:#848b94;--rule:#80808055;--soft:#80808014;--band-alarm:#d6453726;"
    "--band-warn:#c98a0030;--band-good:#3a916026;"
    "max-width:860px;margin:4px 0;color:var(--jp-content-font-color1,inherit);"
    "overflow-wrap:anywhere;font:13px/1.5 var(--jp-content-font-family,system-ui,sans-serif);"
    "font-variant-numeric:tabular-nums}"
    "@supports(color:color-mix(in srgb,red,red)){.trimtab{"
    "--alarm:color-mix(in srgb,#e2483a 76%,currentColor);"
    "--warn:color-mix(in srgb,#c58200 74%,currentColor);"
    "--good:color-mix(in srgb,#2f9e64 72%,currentColor);"
    "--data:color-mix(in srgb,#3f86ea 80%,currentColor);"
    "--mute:color-mix(in srgb,currentColor 66%,transparent)}}"
    ".trimtab .trimtab-title{font-size:15px;font-weight:600;padding:7px 12px;margin:0 0 8px;"
    "background:var(--soft);border-left:4px solid}"
    ".trimtab .alarm{color:var(--alarm)}.trimtab .warn{color:var(--warn)}"
    ".trimtab .good{color:var(--good)}.trimtab .trimtab-mute{color:var(--mute)}"
    ".trimtab .trimtab-row{display:grid;grid-template-columns:4em minmax(0,1fr);gap:0 12px;"
    "margin:2px 0}.trimtab .trimtab-row>:first-child{color:var(--mute)}"
    ".trimtab .trimtab-part{border:1px solid var(--rule);border-radius:4px;padding:8px 12px;"
    "margin:8px 0}"
    ".trimtab .trimtab-whole{white-space:nowrap}"
    ".trimtab>svg{display:block;width:100%;height:auto;margin:8px 0}"
    ".trimtab code{font-size:12px}.trimtab details{margin:4px 0 0}"
    ".trimtab summary{cursor:pointer;color:var(--mute)}"
)


def card(tone: str, title: str, *content: Text) -> Html:
    """Return a card; its title is coloured by the tone: `good`, `warn`, `alarm` or none."""
    head = tag("div", clip(title), class_=f"trimtab-title {tone}".strip())
    return tag("div", tag("style", _STYLE), *([head] if title else []), *content, class_="trimtab")


def row(name: str, text: Text) -> Html:
    """Return a line of a card: a name, and what there is to say under it."""
    said = text if isinstance(text, Html) else clip(text)
    return tag("div", tag("div", name), tag("div", said), class_="trimtab-row")


def fold(summary: str, parts: Iterable[Html]) -> Html:
    """Return what is shown when its summary is clicked; nothing if there is nothing."""
    inside = list(parts)
    return tag("details", tag("summary", summary), *inside) if inside else Html("")


def fitting(parts: Iterable[Html], most: int = MAX_BYTES) -> list[Html]:
    """Return the first of some parts, as many as fit into so many bytes."""
    kept: list[Html] = []
    for part in parts:
        most -= len(part.encode())
        if most < 0:
            break
        kept.append(part)
    return kept


def clip(text: str) -> str:
    """Return the beginning of a text that is too long to be read."""
    return text if len(text) <= MAX_CHARS else f"{text[:MAX_CHARS]}..."
