"""`Tracker`: a function for `fit(on_epoch=...)` that can be closed."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Any, Self


class Tracker:
    """A function of an epoch's number and figures that sends them on. `avuc.trackers.mlflow` and others make it.

    Use it in a `with` block, or call `close()` after the training.

    Args:
        send: receives the epoch and a dict of figures.
        finish: called once, by `close`.
        run: the run or writer of the other library, for everything else that you want to record.
        fail: called instead of `finish` if the `with` block raises an error. Default None: `finish`.

    >>> with Tracker(print, lambda: print("closed"), None) as tracker:
    ...     tracker(0, {"nll": 0.5})
    0 {'nll': 0.5}
    closed
    """

    def __init__(
        self,
        send: Callable[[int, dict[str, float]], object],
        finish: Callable[[], object],
        run: Any,
        fail: Callable[[], object] | None = None,
    ) -> None:
        self.run: Any = run
        self._send = send
        self._finish = finish
        self._open = True
        self._fail = finish if fail is None else fail

    def __call__(self, epoch: int, figures: dict[str, float]) -> None:
        """Send the figures of an epoch."""
        self._send(epoch, figures)

    def close(self) -> None:
        """End the run. A second call does nothing."""
        if self._open:
            self._open = False
            self._finish()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            self._finish = self._fail
        self.close()
