"""`study.sqlite` and the files beside it. Only `checkpoints` loads torch."""

from __future__ import annotations

from collections.abc import Callable

from avuc._old_names import forward

__getattr__: Callable[[str], object] = forward(__name__)
