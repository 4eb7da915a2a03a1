"""A progress line on standard error, shown only on a terminal."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sized
from contextlib import contextmanager
from typing import TextIO, TypeVar

T = TypeVar("T")
REDRAW_SECONDS = 0.1
# `delayed_progress` shows no line for work that takes less time than this
DELAY_SECONDS = 1.0
# True inside `without_progress`
_silent = False


class Progress:
    """A bar with the share done, the rate and the time left.

    On a terminal the line is redrawn in place; elsewhere (a log file, CI) nothing is printed unless `always` is set,
    and then only one closing line.

    >>> with Progress("draws", total=3, stream=sys.stdout, always=True) as bar:
    ...     for _ in range(3):
    ...         bar.advance()  # doctest: +ELLIPSIS
    draws: 3/3 in ...
    """

    def __init__(
        self, label: str, total: int | None = None, *, stream: TextIO | None = None, always: bool = False
    ) -> None:
        self.label: str = label
        self.total: int | None = total
        self.done: int = 0
        self.note: str = ""
        self.stream: TextIO = sys.stderr if stream is None else stream
        self.live: bool = self.stream.isatty() and not _silent
        self.always = always
        self.started: float = time.monotonic()
        self._drawn = 0.0

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def advance(self, steps: int = 1, note: str | None = None) -> None:
        self.done += steps
        if note is not None:
            self.note = note
        now = time.monotonic()
        if self.live and now - self._drawn >= REDRAW_SECONDS:
            self._drawn = now
            self._draw(now)

    def close(self) -> None:
        if self.live:
            self._draw(time.monotonic())
            self.stream.write("\n")
            self.stream.flush()
        elif self.always:
            of = "" if self.total is None else f"/{self.total}"
            self.stream.write(
                f"{self.label}: {self.done}{of} in {_clock(time.monotonic() - self.started)} {self.note}".rstrip()
                + "\n"
            )

    def _draw(self, now: float) -> None:
        spent = now - self.started
        rate = self.done / spent if spent > 0 else 0.0
        if self.total:
            share = min(self.done / self.total, 1.0)
            filled = round(24 * share)
            left = _clock((self.total - self.done) / rate) if rate > 0 else "?"
            bar = "█" * filled + "░" * (24 - filled)
            text = f"{self.label} [{bar}] {self.done}/{self.total} {rate:.1f}/s left {left} {self.note}"
        else:
            text = f"{self.label} {self.done} {rate:.1f}/s {self.note}"
        width = shutil.get_terminal_size().columns - 1
        self.stream.write("\r" + text[:width].ljust(width))
        self.stream.flush()


@contextmanager
def without_progress(silent: bool = True) -> Iterator[None]:
    """Show no progress lines inside the block."""
    global _silent
    before, _silent = _silent, silent or _silent
    try:
        yield
    finally:
        _silent = before


def track(items: Iterable[T], label: str, total: int | None = None) -> Iterator[T]:
    """Iterate with a progress line."""
    if total is None and isinstance(items, Sized):
        total = len(items)
    with Progress(label, total) as bar:
        for item in items:
            yield item
            bar.advance()


def _clock(seconds: float) -> str:
    seconds = round(seconds)
    return (
        f"{seconds // 3600}:{seconds // 60 % 60:02}:{seconds % 60:02}"
        if seconds >= 3600
        else f"{seconds // 60}:{seconds % 60:02}"
    )


@contextmanager
def delayed_progress(label: str, total: int) -> Iterator[Callable[[int], None]]:
    """Yield a function that counts finished steps; the progress line appears only after a second of work."""
    started, done = time.monotonic(), 0
    bar: Progress | None = None

    def advance(steps: int) -> None:
        nonlocal done, bar
        done += steps
        if bar is not None:
            bar.advance(steps)
        elif time.monotonic() - started > DELAY_SECONDS:
            bar = Progress(label, total)
            bar.started = started
            bar.advance(done)

    try:
        yield advance
    finally:
        if bar is not None:
            bar.close()
