"""The Python examples of docs/guide/metrics.md and docs/guide/calibration.md run."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

GUIDE = Path(__file__).parents[2] / "docs" / "guide"
BLOCKS = [
    pytest.param(block, id=f"{page}-{number}")
    for page in ("metrics.md", "calibration.md")
    for number, block in enumerate(re.findall(r"```python\n(.*?)```", (GUIDE / page).read_text("utf-8"), re.DOTALL))
]


def test_both_pages_have_examples() -> None:
    assert len(BLOCKS) >= 4


@pytest.mark.parametrize("block", BLOCKS)
def test_example(block: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    np.save("logits.npy", rng.standard_normal((300, 4), dtype=np.float32))
    np.save("labels.npy", rng.integers(0, 4, 300))
    exec(compile(block, "docs", "exec"), {})
