"""The code in docs/guide/prediction.md runs without warnings."""

from __future__ import annotations

import re
from pathlib import Path

import torch

PAGE = Path(__file__).parents[2] / "docs" / "guide" / "prediction.md"


def test_the_page_runs() -> None:
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert len(blocks) == 4
    scope: dict[str, object] = {}
    for block in blocks:  # later blocks use names of the first
        exec(compile(block, PAGE.name, "exec"), scope)
    assert scope["predictions"].probs.shape == (100, 10)  # type: ignore[attr-defined]
    assert scope["logits"].shape == (16, 100, 10)  # type: ignore[attr-defined]
    assert torch.equal(scope["loaded"].labels, scope["chosen"].labels)  # type: ignore[attr-defined]
    assert torch.equal(scope["named"].probs, scope["chosen"].probs)  # type: ignore[attr-defined]
    assert len(scope["stream"]) == 6400  # type: ignore[arg-type]
