"""Hub: all runs of the given folders, observed by one thread; any number of readers wait on it."""

import hashlib
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from trimtab.journal import RunDirectory
from trimtab.observe.server.run_feed import POLL_SECONDS, RunFeed

log = logging.getLogger("trimtab")

ROUND_SECONDS = 1.0
"""Time to judge in one round: hundreds of new runs are shown at once, and judged one after the
other."""
SCAN_SECONDS = 5.0
"""How often folders are searched for new runs."""
REFRESH_SECONDS = 10.0
"""How often every line is computed again: silence is no event, and small curves move slowly."""

MAX_DEPTH = 4
"""How deep below a given folder runs are searched."""


def find_run_folders(roots: Sequence[Path]) -> Iterator[tuple[str, Path]]:
    """Yield every run at or below the given paths, with its name: its path below what was given."""
    for root in roots:
        if RunDirectory.find(root) is not None:
            yield root.resolve().name, root
            continue
        base = len(root.parts)
        for folder, names, _ in os.walk(root, onerror=None, followlinks=False):
            path = Path(folder)
            if path != root and RunDirectory(path).exists():
                names.clear()
                yield str(path.relative_to(root)), path
            elif len(path.parts) - base >= MAX_DEPTH:
                names.clear()


class Hub:
    """The feeds of all runs, and the lines of the fleet."""

    def __init__(
        self,
        roots: Sequence[Path],
        on_change: Callable[[RunFeed], None] = lambda feed: None,
    ) -> None:
        """`on_change` is called after each look at a run that has found something."""
        self._roots = [Path(root) for root in roots]
        self._on_change = on_change
        self.feeds: dict[str, RunFeed] = {}
        self.version = 0
        """Counts up with every change of any run."""
        self.changed = threading.Condition(threading.RLock())
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="trimtab-hub", daemon=True)
        self._next_scan = self._next_refresh = 0.0

    def start(self) -> None:
        self.poll()
        self._thread.start()

    def close(self) -> None:
        self._stop.set()
        with self.changed:
            self.changed.notify_all()
        if self._thread.is_alive():
            self._thread.join(10)
        for feed in self.feeds.values():
            feed.close()

    @property
    def closed(self) -> bool:
        """Whether readers should leave."""
        return self._stop.is_set()

    @property
    def is_over(self) -> bool:
        """Whether there are runs, and each is over and judged."""
        feeds = self.feeds.values()
        return bool(feeds) and all(feed.observed.standing.status.is_over for feed in feeds)

    def fleet_since(self, version: int) -> dict[str, Any]:
        """Return the lines that changed after a version."""
        with self.changed:
            rows = [feed.line for feed in self.feeds.values() if feed.line_version > version]
            return {"version": self.version, "rows": rows, "sent": time.time()}

    def poll(self) -> None:
        clock = time.monotonic()
        if clock >= self._next_scan:
            self._next_scan = clock + SCAN_SECONDS
            self._scan()
        is_refresh = clock >= self._next_refresh
        if is_refresh:
            self._next_refresh = clock + REFRESH_SECONDS
        touched = []
        for id, feed in list(self.feeds.items()):
            is_late = time.monotonic() - clock > ROUND_SECONDS
            if feed.times.is_due(clock) and not (is_late and feed.line_version >= 0):
                try:
                    has_changed = feed.poll(judges=not is_late)
                    if has_changed:
                        self._on_change(feed)
                except Exception as error:  # one run must not stop the others
                    log.exception("trimtab: %s cannot be followed", feed.name)
                    feed.error, has_changed = f"{type(error).__name__}: {error}", True
                is_over = feed.ended is not None or feed.stream.is_written or bool(feed.error)
                has_changed |= is_late  # it is judged in one of the next rounds
                feed.times.update(clock, has_changed=has_changed, is_over=is_over)
                if has_changed or is_refresh or feed.line_version < 0:
                    touched.append((id, feed))
        now = time.time()
        lines = [(feed, feed.summarize(id, now)) for id, feed in touched]
        if changed := [(feed, line) for feed, line in lines if line != feed.line]:
            with self.changed:
                self.version += 1
                for feed, line in changed:
                    feed.line, feed.line_version = line, self.version
                self.changed.notify_all()

    def _scan(self) -> None:
        for name, path in find_run_folders(self._roots):
            id = hashlib.sha256(os.fsencode(path.resolve())).hexdigest()[:12]
            if id not in self.feeds and (found := RunDirectory.find(path)):
                with self.changed:
                    self.feeds[id] = RunFeed(found, name)

    def _run(self) -> None:
        while not self._stop.wait(POLL_SECONDS):
            try:
                self.poll()
            except Exception:  # a folder that vanished; the next round may work
                log.exception("trimtab: the runs cannot be read")
