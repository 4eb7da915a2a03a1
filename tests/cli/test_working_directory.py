"""`python -m avuc` in a folder with files of the user."""

from __future__ import annotations

import subprocess
import sys

RECIPE = """
[net]
name = "random:make"

[[methods]]
name = "V"
method = "vanilla"
"""


def test_a_file_with_the_name_of_a_standard_module(tmp_path):
    """`python -m` puts the working directory first on the search path, and torch imports `random`."""
    (tmp_path / "random.py").write_text("import torch\n\ndef make(num_classes):\n    return torch.nn.Linear(1, 1)\n")
    (tmp_path / "recipe.toml").write_text(RECIPE)
    command = [sys.executable, "-m", "avuc", "study", "recipe.toml", "--dry-run"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith("avuc: net.name: random:make: random has no 'make'; this is a module in ")
    assert done.stderr.endswith("random.py; rename your file\n")
    assert done.stderr.count("\n") == 1
