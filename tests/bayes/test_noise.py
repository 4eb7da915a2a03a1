"""Where noise comes from."""

from __future__ import annotations

from typing import Any

import torch

from avuc.bayes import to_bayesian
from avuc.nets import mlp

DRAW = """
import sys, torch
from avuc.bayes import to_bayesian
from avuc.nets import mlp
net = to_bayesian(mlp(3, (8, 8, 1)))
net.draw(torch.Generator().manual_seed(0))(torch.rand(2, 1, 8, 8))
net.noise(torch.Generator().manual_seed(0))
sys.exit("torch._dynamo" in sys.modules)
"""


def test_a_draw_does_not_load_the_compiler(fresh_python: Any) -> None:
    """It takes seconds, and only compiled code needs it."""
    fresh_python(DRAW).check_returncode()


def test_a_compiled_draw_is_the_eager_one() -> None:
    """The generator is used once, outside the graph."""
    net = to_bayesian(mlp(3, (8, 8, 1)))
    images, generators = torch.rand(2, 1, 8, 8), [torch.Generator().manual_seed(5) for _ in range(2)]
    eager = net(images, generator=generators[0])
    compiled = torch.compile(lambda x: net(x, generator=generators[1]), backend="aot_eager")(images)
    torch.testing.assert_close(compiled, eager)
    assert torch.equal(generators[0].get_state(), generators[1].get_state())
