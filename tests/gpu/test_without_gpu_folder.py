"""Deleting the folder avuc/gpu leaves everything working, with the same results on the CPU."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import torch
from torch import Tensor

# makes `avuc.gpu` and everything below it unimportable, as if the folder were deleted
HIDE = """
import sys
from importlib.abc import MetaPathFinder


class Hide(MetaPathFinder):
    def find_spec(self, fullname, path=None, target=None):
        if fullname == "avuc.gpu" or fullname.startswith("avuc.gpu."):
            raise ImportError(f"{fullname} is hidden", name=fullname)
        return None


sys.meta_path.insert(0, Hide())
"""

CHECK_HIDDEN = """
assert not any(name.split(".")[:2] == ["avuc", "gpu"] for name in sys.modules)
try:
    import avuc.gpu
except ImportError:
    pass
else:
    raise AssertionError("avuc.gpu is not hidden")
"""

PREDICT = """
import sys, warnings
import torch

warnings.simplefilter("error")
torch.set_num_threads(1)
import avuc
from avuc.methods import SVI, Dropout
from avuc.nets import resnet20

images = torch.randint(256, (6, 32, 32, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))
results = {}
for method in (SVI(), Dropout(rate=0.2)):
    net = resnet20(generator=torch.Generator().manual_seed(0))
    posterior = method.posterior([method.build(net, generator=torch.Generator().manual_seed(2))])
    for dtype in (None, torch.bfloat16):
        found = avuc.predict(posterior, images, samples=3, dtype=dtype, progress=False)
        results[f"{method.name} {dtype}"] = (found.probs, found.expected_entropy)
torch.save(results, sys.argv[1])
"""


def run(code: str, *arguments: Path, hidden: bool) -> None:
    if hidden:
        code = HIDE + code + CHECK_HIDDEN
    done = subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr


def test_predictions_are_the_same(tmp_path: Path) -> None:
    results: list[dict[str, tuple[Tensor, Tensor]]] = []
    for hidden in (False, True):
        path = tmp_path / f"{hidden}.pt"
        run(PREDICT, path, hidden=hidden)
        results.append(torch.load(path))
    assert len(results[0]) == 4
    assert results[0].keys() == results[1].keys()
    for name, (probs, entropy) in results[0].items():
        assert torch.equal(probs, results[1][name][0]), name
        assert torch.equal(entropy, results[1][name][1]), name
