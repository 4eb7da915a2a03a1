"""The Python examples of docs/guide/metrics.md and docs/guide/calibration.md run."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

GUIDE = Path(__file__).parents[2] / "docs" / "guide"


@pytest.mark.parametrize("page", ["metrics.md", "calibration.md"])
def test_examples(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All blocks of a page one after another, as a reader would run them."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    np.save("logits.npy", rng.standard_normal((300, 4), dtype=np.float32))
    np.save("labels.npy", rng.integers(0, 4, 300))
    blocks = re.findall(r"```python\n(.*?)```", (GUIDE / page).read_text("utf-8"), re.DOTALL)
    assert len(blocks) >= 2
    namespace: dict[str, object] = {}
    for number, block in enumerate(blocks):
        exec(compile(block, f"{page}, block {number}", "exec"), namespace)
