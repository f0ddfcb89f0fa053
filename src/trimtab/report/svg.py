"""SVG documents of reports. Colours are variables, so a figure follows the theme of its page.

Inside a page the variables come from the page; a file of its own brings them along.
"""

from html import escape

from trimtab.report.escaping import printable

STYLE = (
    ".fig{--ink:#1b1f24;--mute:#57606a;--rule:#d8dde3;--data:#1f5fbf;--alarm:#b42318;"
    "--band:#b423181a;--paper:#fff}"
    "@media(prefers-color-scheme:dark){.fig{--ink:#e3e7ec;--mute:#98a2ae;--rule:#30373f;"
    "--data:#74aaff;--alarm:#ff8272;--band:#ff827222;--paper:#14171a}}"
)


def svg_document(width: int, height: int, title: str, body: str, *, is_file: bool) -> str:
    """The document around a drawing; `is_file` adds what one outside of a page needs."""
    own = f"<style>{STYLE}</style>" if is_file else ""
    paper = '<rect width="100%" height="100%" fill="var(--paper)"/>' if is_file else ""
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="fig" viewBox="0 0 {width} {height}" '
        f'width="{width}" height="{height}" role="img" font-family="system-ui, sans-serif" '
        f'font-size="12" fill="var(--ink)">{own}<title>{escape(printable(title))}</title>'
        f"{paper}\n{body}\n</svg>\n"
    )


def svg_text(
    x: float,
    y: float,
    text: str,
    *,
    fill: str = "var(--ink)",
    anchor: str = "start",
    weight: str = "normal",
    size: int = 12,
) -> str:
    """One line of text, escaped."""
    style = f'font-size="{size}" font-weight="{weight}" text-anchor="{anchor}" fill="{fill}"'
    return f'<text x="{x:.1f}" y="{y:.1f}" {style}>{escape(printable(text))}</text>'
