"""The program of docs/guide/lightning.md, on a few made-up rows."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

pytest.importorskip("lightning.pytorch")
pytestmark = [
    pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning"),  # Lightning uses what torch 2.13 deprecates
    pytest.mark.filterwarnings("ignore:.*does not have many workers.*"),
    pytest.mark.filterwarnings("ignore:.*smaller than the logging interval.*"),
]
PAGE = Path(__file__).parents[2] / "docs" / "guide" / "lightning.md"


def test_the_program_of_the_guide(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    assert "max_epochs=50," in blocks[1]
    fewer = 'max_epochs=7, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,'
    torch.manual_seed(0)
    x = torch.randn(64, 4)
    loader = DataLoader(TensorDataset(x, (x[:, 0] > 0).long()), batch_size=32)
    namespace = {"__name__": "page", "net": torch.nn.Linear(4, 2)}
    namespace |= dict.fromkeys(("train_loader", "validation_loader", "test_loader"), loader)
    for block in (blocks[0], blocks[1].replace("max_epochs=50,", fewer)):
        exec(compile(block, "lightning.md", "exec"), namespace)
    assert namespace["module"].num_train == 64
    assert namespace["predictions"].probs.shape == (64, 2)
    assert namespace["calibrator"].temperature_ > 0
