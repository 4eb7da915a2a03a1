"""A server on this machine that does whatever a test asks of it."""

from __future__ import annotations

import http.server
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest


@dataclass
class Server:
    """What the server does next, and what it was asked."""

    url: str
    files: dict[str, bytes] = field(default_factory=dict)
    ranges: bool = True
    cut_after: int | None = None  # close the connection after so many bytes of a body
    announce: int | None = None  # lie about the length
    status: int | None = None
    shift_range: int = 0  # answer a range with another one
    slow: float = 0.0  # seconds between kilobytes
    asked: list[str] = field(default_factory=list)  # the Range header of each request


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setenv("no_proxy", "127.0.0.1")

    class Handler(http.server.BaseHTTPRequestHandler):
        def log_message(self, *_: Any) -> None: ...

        def do_GET(self) -> None:
            wanted = self.headers.get("Range", "")
            state.asked.append(wanted)
            body = state.files.get(self.path.lstrip("/"))
            if state.status or body is None:
                self.send_error(state.status or 404)
                return
            start = 0
            if wanted and state.ranges:
                start = int(wanted.removeprefix("bytes=").rstrip("-")) + state.shift_range
                if start >= len(body):
                    self.send_error(416)
                    return
                self.send_response(206)
                self.send_header("Content-Range", f"bytes {start}-{len(body) - 1}/{len(body)}")
            else:
                self.send_response(200)
            rest = body[start:]
            self.send_header("Content-Length", str(state.announce or len(rest)))
            self.end_headers()
            if state.cut_after is not None:
                rest = rest[: state.cut_after]
            step = 1024 if state.slow else len(rest)
            try:
                for at in range(0, len(rest), max(step, 1)):
                    self.wfile.write(rest[at : at + step])
                    time.sleep(state.slow)
            except OSError:
                pass  # the client was killed, as the test wants

    class Threaded(http.server.ThreadingHTTPServer):
        daemon_threads = True

    with Threaded(("127.0.0.1", 0), Handler) as running:
        state = Server(f"http://127.0.0.1:{running.server_port}/")
        thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        yield state
        running.shutdown()
        thread.join()
