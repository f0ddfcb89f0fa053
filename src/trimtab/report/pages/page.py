"""The shell of a page: one file, no request to anywhere, nothing runs but our own scripts.

The Content-Security-Policy names the hash of every script and style; data is JSON in an element
that is not executed. So text of a log can neither run nor load anything, even if an escape failed.
"""

import base64
import hashlib
import json
from collections.abc import Iterable, Sequence
from functools import cache
from importlib.resources import files
from typing import Any

from trimtab._version import __version__
from trimtab.core.escaping import Html, Text, tag

DATA_ID = "data"


@cache
def asset(name: str) -> str:
    return files("trimtab.report.pages").joinpath("assets", name).read_text(encoding="utf-8")


def render_page(
    *, title: str, body: str, data: Any = None, scripts: Sequence[str] = (), is_served: bool = False
) -> str:
    """Return a whole page.

    Args:
        title: Shown by the browser; any text.
        body: HTML that is trusted: made by us, with all text escaped.
        data: JSON values for the scripts.
        scripts: Names of assets, in the order in which they run.
        is_served: Whether the page may connect to the server that it comes from.
    """
    style = asset("page.css")
    codes = [asset(name) for name in scripts]
    policy = content_policy(style, codes, is_served=is_served)
    held = (
        ""
        if data is None
        else (f'<script type="application/json" id="{DATA_ID}">{json_for_html(data)}</script>\n')
    )
    code = "".join(f"<script>{code}</script>\n" for code in codes)
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        '<meta name="referrer" content="no-referrer">\n'
        f"{tag('title', title)}\n"
        f"<style>{style}</style>\n</head>\n<body>\n"
        f'<aside class="brand" aria-label="made by"><b>trimtab</b> {__version__}</aside>\n{body}\n'
        f"{held}{code}</body>\n</html>\n"
    )


def content_policy(style: str, scripts: Sequence[str], *, is_served: bool) -> str:
    """Return the policy of a page with this style and these scripts."""
    parts = [
        "default-src 'none'",
        "script-src " + (" ".join(map(_hash, scripts)) or "'none'"),
        f"style-src {_hash(style)}",
        "base-uri 'none'",
        "form-action 'none'",
    ]
    if is_served:
        parts.append("connect-src 'self'")
    return "; ".join(parts)


def json_for_html(data: Any) -> str:
    """Return JSON that cannot end its element: `<`, `>`, `&` and all non-ASCII are escaped."""
    text = json.dumps(data, allow_nan=False, separators=(",", ":"))
    for char in "<>&":
        text = text.replace(char, f"\\u{ord(char):04x}")
    return text


def facts_list(facts: Iterable[tuple[str, Text]]) -> Html:
    """Return names and values in one dense line."""
    return tag(
        "dl",
        *(
            tag("div", tag("dt", name), tag("dd", value, id=f"fact-{name.replace(' ', '-')}"))
            for name, value in facts
        ),
        class_="facts",
    )


def _hash(text: str) -> str:
    digest = hashlib.sha256(text.encode("utf-8")).digest()
    return f"'sha256-{base64.b64encode(digest).decode('ascii')}'"
