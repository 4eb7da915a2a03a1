"""The contact sheet and its command; the example of a shift of one's own."""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from avuc import shifts
from avuc.cli.shifts import COMMAND
from avuc.core.errors import InputError
from avuc.shifts.gallery import contact_sheet

EXAMPLE = Path(__file__).parents[2] / "examples" / "custom_shift.py"


def command(*words: str) -> int:
    parser = argparse.ArgumentParser()
    COMMAND.arguments(parser)
    return COMMAND.run(parser.parse_args(words))


def test_sheet_shows_every_tile(pieces: NDArray[np.uint8]) -> None:
    seen = []

    def corrupt(images: NDArray[np.uint8], name: str, severity: int) -> NDArray[np.uint8]:
        seen.append((name, severity))
        return np.full_like(images, 10 * severity)

    sheet = np.asarray(contact_sheet(pieces[0], ["a", "b", "c"], corrupt))
    assert sorted(seen) == [(name, severity) for name in "abc" for severity in (1, 2, 3, 4, 5)]
    # three names in two panels; a 32-pixel image is enlarged threefold
    for severity in (1, 2, 3, 4, 5):
        assert (sheet == 10 * severity).all(axis=2).sum() >= 3 * 96 * 96
    first = sheet[28 : 28 + 96, 168 : 168 + 96]
    np.testing.assert_array_equal(first, pieces[0].repeat(3, axis=0).repeat(3, axis=1))


def test_command_writes_a_sheet_of_a_photograph(
    tmp_path: Path, photographs: NDArray[np.uint8], capsys: pytest.CaptureFixture[str]
) -> None:
    Image.fromarray(photographs[0, :60, :90]).save(tmp_path / "small.png")
    assert command("gallery", str(tmp_path / "small.png"), "--out", str(tmp_path / "sheet.png")) == 0
    text = capsys.readouterr().out
    assert "small.png, 60×90×3; severities of the cifar profile" in text
    assert f"frost pictures: {shifts.frost_source()}" in text
    assert "19 shifts × 5 severities" in text
    with Image.open(tmp_path / "sheet.png") as sheet:
        assert sheet.format == "PNG"
        assert sheet.size[0] > 1000
    assert sorted(path.name for path in tmp_path.iterdir()) == ["sheet.png", "small.png"]


def test_command_takes_a_grey_data_set(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command("gallery", "mnist5k", "--index", "3", "--out", str(tmp_path / "digits.png"), "--seed", "4") == 0
    assert "image 3 of mnist5k" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("missing.png", "--out", "sheet.png"), "no such picture"),
        (("text.png", "--out", "sheet.png"), "not a readable picture"),
        (("text.png", "--out", "sheet.jpg"), "must end in .png"),
        (("text.png", "--out", "text.png"), "would overwrite"),
        (("text.png", "--out", "nowhere/sheet.png"), "folder that exists"),
        (("nothing", "--out", "sheet.png"), "no data set 'nothing'"),
        (("mnist5k", "--index", "100000", "--out", "sheet.png"), "--index: expected 0 to"),
        (("text.png", "--out", "sheet.png", "--frost", "."), "no frost pictures here"),
    ],
)
def test_command_explains_bad_input(
    words: tuple[str, ...], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("text.png").write_text("not a picture")
    if "--frost" in words:
        Path("text.png").rename("text.bin")
    with pytest.raises(InputError, match=message):
        command("gallery", *words)
    assert not Path("sheet.png").exists()


def test_example_runs() -> None:
    done = subprocess.run([sys.executable, str(EXAMPLE)], capture_output=True, text=True, check=True)
    assert "severity 5: dead rows per image [5, 5, 1, 5]" in done.stdout  # the third image begins at its last row


def test_example_is_split_invariant(monkeypatch: pytest.MonkeyPatch, pieces: NDArray[np.uint8]) -> None:
    scope: dict[str, object] = {"__name__": "example"}
    monkeypatch.setattr(shifts, "SHIFTS", dict(shifts.SHIFTS))
    exec(compile(EXAMPLE.read_text(), str(EXAMPLE), "exec"), scope)
    whole = shifts.corrupt(pieces[:9], "dead_rows", 3)
    split = [shifts.corrupt(part, "dead_rows", 3) for part in np.split(pieces[:9], (2, 5))]
    np.testing.assert_array_equal(whole, np.concatenate(split))
    assert not np.array_equal(whole, pieces[:9])
