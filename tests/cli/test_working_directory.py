"""`python -m avuc` in a folder with files of the user."""

from __future__ import annotations

import subprocess
import sys

from avuc.cli import main

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


def test_several_processes_beside_a_file_with_the_name_of_a_standard_module(tmp_path):
    """The server of the processes imports torch, too."""
    assert main(["study", "--init", str(tmp_path / "mine")]) == 0
    (tmp_path / "mine" / "random.py").write_text("import torch\n\ntorch.nn.Linear\n")
    words = ["study", "recipe.toml", "--no-report", "--device", "cpu,cpu", "--set", "train.epochs=2"]
    words += ["--set", "study.severities=[1]", "--set", "train.milestones=[]", "--set", "train.factors=[]"]
    words += ["--set", "methods.SVI-AvUC.objective.warmup_epochs=1"]
    command = [sys.executable, "-m", "avuc", *words]
    done = subprocess.run(command, cwd=tmp_path / "mine", capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
