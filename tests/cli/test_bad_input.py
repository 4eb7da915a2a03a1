"""Every command: bad input is one line on standard error and exit code 2, without a traceback."""

from __future__ import annotations

import shlex
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from avuc.cli import COMMANDS, main

CALLS = [
    "demo --out taken.jpg",
    "demo --seed x",
    "demo --nonsense",
    "evaluate missing.npz",
    "evaluate damaged.npz",
    "evaluate a.npz --bins 0",
    "calibrate missing.npz --method temperature --out c.json",
    "calibrate damaged.npz --method temperature --out c.json",
    "calibrate a.npz --method magic --out c.json",
    "apply missing.json a.npz --to b.npz",
    "apply other.json a.npz --to b.npz",
    "apply other.json a.npz --to b.csv",
    "conformal damaged.npz",
    "conformal other.json --check a.npz",
    "conformal a.npz --coverage 1.5",
    "select damaged.npz",
    "select other.json --check a.npz",
    "select a.npz --risk -1",
    "train missing.toml --out run",
    "train damaged.toml --out run",
    "train recipe.toml --out run --device gpu",
    "study missing --out run",
    "study damaged.toml --out run",
    "study demo --set train.epochz=2 --out run",
    "report",
    "report .",
    "report --compare . missing",
    "shifts gallery missing.jpg --out sheet.png",
    "shifts gallery taken.jpg --out sheet.png",
    "shifts gallery taken.jpg --out sheet.txt",
    "completion",
    "completion tcsh",
    "completion bash more",
]


@pytest.mark.parametrize("call", CALLS)
def test_bad_input_is_one_line(
    call: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("damaged.npz", "damaged.toml", "taken.jpg"):
        Path(name).write_text("[no such thing")
    np.savez("a.npz", logits=np.eye(3), labels=np.arange(3))
    Path("other.json").write_text('{"format": "other"}')
    Path("recipe.toml").write_text('[data]\nname = "mnist5k"\nvalidation = 400\n[net]\nname = "mlp"\n')
    before = sorted(tmp_path.rglob("*"))
    try:
        code = main(shlex.split(call))
    except SystemExit as stop:
        code = stop.code
    error = capsys.readouterr().err
    assert code == 2
    assert error.startswith("avuc: ")
    assert error.count("\n") == 1
    assert ("No such file" in error) <= ("missing" in call)  # not for another reason than the one meant
    assert sorted(tmp_path.rglob("*")) == before


def test_every_command_has_three_kinds() -> None:
    assert Counter(call.split()[0] for call in CALLS) == dict.fromkeys(COMMANDS, 3)
