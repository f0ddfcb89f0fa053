"""A call that returns or raises in time, whatever the other side does.

A socket timeout limits one read, not the call: a server that sends a byte every second holds a
request with a timeout of 3 s for as long as it likes, and looking up a name has no timeout at all.
"""

import contextlib
import socket
import threading
from collections.abc import Callable
from typing import TypeVar

_Result = TypeVar("_Result")


class Connections:
    """The sockets of one call; all are shut down when its time is over."""

    def __init__(self) -> None:
        self._sockets: list[socket.socket] = []
        self._is_over = False
        self._lock = threading.Lock()

    def add(self, connection: socket.socket) -> None:
        """Shut this one down too, at once if the time is over."""
        with self._lock:
            self._sockets.append(connection)
            if self._is_over:
                _shut_down(connection)

    def shut_down(self) -> None:
        """End everything that waits for the other side."""
        with self._lock:
            self._is_over = True
            for connection in self._sockets:
                _shut_down(connection)


def call_within(seconds: float, work: Callable[[Connections], _Result]) -> _Result:
    """The result of `work`; raises TimeoutError when the time is over.

    The work runs in a thread that ends with its connections. A name lookup cannot be interrupted:
    its thread goes on alone and ends with the lookup.
    """
    connections = Connections()
    results: list[_Result] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            results.append(work(connections))
        except BaseException as error:  # handed to the caller
            errors.append(error)

    thread = threading.Thread(target=run, name="trimtab-request", daemon=True)
    thread.start()
    thread.join(seconds)
    if thread.is_alive():
        connections.shut_down()
        raise TimeoutError(f"no complete answer within {seconds:g} s")
    if errors:
        raise errors[0]
    return results[0]


def _shut_down(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):  # it is closed already
        connection.shutdown(socket.SHUT_RDWR)
