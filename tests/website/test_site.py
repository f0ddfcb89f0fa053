"""The built site: links and anchors lead somewhere, and nothing is loaded from other servers."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache, partial
from html.parser import HTMLParser
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from urllib.parse import unquote

import pytest
from tests.kit.chromium import CHROMIUM, chromium

LOADED = {"img", "script", "iframe", "source", "video", "audio", "embed", "object", "input"}
"""Elements that load what `src` or `data` names. `link` loads too, unless it is a pointer."""
POINTERS = {"canonical", "next", "prev", "edit", "license"}


@dataclass
class Page(HTMLParser):
    """What a page links to, loads and can be linked to by."""

    links: list[str] = field(default_factory=list)
    loads: list[str] = field(default_factory=list)
    anchors: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        super().__init__()

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        found = {name: value or "" for name, value in attributes}
        self.anchors |= {found[name] for name in ("id", "name") if found.get(name)}
        if tag == "a" and "href" in found:
            self.links.append(found["href"])
        if tag in LOADED:
            self.loads += [found[name] for name in ("src", "data", "srcset") if name in found]
        if tag == "link" and found.get("rel") not in POINTERS:
            self.loads.append(found.get("href", ""))


@cache
def read(path: Path) -> Page:
    page = Page()
    page.feed(path.read_text(encoding="utf-8"))
    return page


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """The address of a server on this machine that has the folder."""
    handler = partial(QuietHandler, directory=str(folder))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()


class QuietHandler(SimpleHTTPRequestHandler):
    """Serves files without a line for each of them."""

    def log_message(self, format: str, *args: object) -> None:
        pass


def pages(site: Path) -> list[Path]:
    return sorted(path for path in site.rglob("*.html") if path.name != "404.html")


def is_elsewhere(address: str) -> bool:
    return bool(re.match(r"(https?:)?//", address))


def broken(site: Path) -> list[str]:
    """Links and files of the site that are not there."""
    found = []
    for path in pages(site):
        page = read(path)
        for address in page.links + page.loads:
            if is_elsewhere(address) or address.startswith(("mailto:", "data:")):
                continue
            name, _, anchor = unquote(address).partition("#")
            target = (path.parent / name).resolve() if name else path
            if target.is_dir():
                target /= "index.html"
            if not target.exists() or (
                anchor and target.suffix == ".html" and anchor not in read(target).anchors
            ):
                found.append(f"{path.relative_to(site)}: {address}")
    return found


def test_every_link_and_anchor_leads_somewhere(site: Path) -> None:
    assert len(pages(site)) > 50
    assert not broken(site)


def test_no_page_loads_anything_from_elsewhere(site: Path) -> None:
    loads = {address for path in pages(site) for address in read(path).loads}
    assert loads
    assert not {address for address in loads if is_elsewhere(address)}
    for style in site.rglob("*.css"):
        outside = re.findall(r"(?:url\(|@import )[\"']?((?:https?:)?//[^)\"']+)", style.read_text())
        assert not outside, f"{style.name} loads {outside}"


@pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed")
@pytest.mark.parametrize("dark", [False, True])
def test_a_browser_asks_nobody_else_and_no_page_is_wider_than_its_window(
    site: Path, dark: bool
) -> None:
    with served(site) as address, chromium() as browser:
        for name in ("index.html", "tutorial/index.html", "api.html"):
            for width in (400, 1600):
                browser.open(f"{address}/{name}", width=width, dark=dark)
                asked = [request for request in browser.requests() if is_elsewhere(request)]
                assert all(request.startswith(address) for request in asked)
                assert not browser.complaints()
                assert browser.evaluate("document.documentElement.scrollWidth <= innerWidth")
                scheme = browser.evaluate("document.body.dataset.mdColorScheme")
                assert scheme == ("slate" if dark else "default")
