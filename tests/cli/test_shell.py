"""The command among others in a shell: pipes, --json -, --quiet, completion, and a machine without extras."""

from __future__ import annotations

import io
import json
import shutil
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest

from avuc.cli import main
from avuc.cli.app import _parser
from avuc.cli.completion import SCRIPTS, commands_of
from avuc.cli.inputs import FORMATS
from avuc.cli.standard_input import format_of
from avuc.core.calibrator_names import CALIBRATOR_NAMES as METHODS
from avuc.core.errors import InputError
from avuc.evaluation.files import find

from .test_apply_command import overconfident, write


def piped(monkeypatch, content, terminal=False):
    buffer = io.BytesIO(content)
    monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=buffer, isatty=lambda: terminal))


def test_formats_are_those_of_the_library():
    assert tuple(find.FORMATS) == tuple(f".{name}" for name in FORMATS)


# ---- standard input


@pytest.mark.parametrize("given", [False, True], ids=["by the first bytes", "--format"])
@pytest.mark.parametrize("suffix", [f".{name}" for name in FORMATS if name != "npy"])
def test_standard_input(tmp_path, monkeypatch, capsys, suffix, given):
    path = write(tmp_path / f"file{suffix}", *overconfident(150, 3))
    words = ["--replicates", "0", "--json", "-"]
    assert main(["evaluate", str(path), *words]) == 0
    expected = json.loads(capsys.readouterr().out)
    piped(monkeypatch, path.read_bytes())
    assert main(["evaluate", "-", *words, *(["--format", suffix[1:]] if given else [])]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out) == expected
    assert err.startswith("standard input: 150 × 4 logits")
    assert "avuc-" not in err  # the temporary folder


def test_standard_input_of_npy_and_apply(tmp_path, monkeypatch, validation):
    scores, labels = overconfident(150, 3)
    np.save(tmp_path / "labels.npy", labels)
    content = io.BytesIO()
    np.save(content, scores)
    piped(monkeypatch, content.getvalue())
    assert main(["evaluate", "-", "--labels", str(tmp_path / "labels.npy"), "--replicates", "0", "--quiet"]) == 0
    cal, to = tmp_path / "cal.json", tmp_path / "to.npy"
    words = ["--method", "temperature", "--out", str(cal), "--replicates", "0", "--quiet"]
    piped(monkeypatch, validation.read_bytes())
    assert main(["calibrate", "-", *words]) == 0
    piped(monkeypatch, content.getvalue())
    assert main(["apply", str(cal), "-", "--to", str(to), "--quiet"]) == 0
    temperature = json.loads(cal.read_text())["learned"]["temperature"]
    np.testing.assert_allclose(np.load(to), scores / temperature, rtol=1e-5)


@pytest.mark.parametrize(
    ("content", "words", "says"),
    [
        (b"", [], "standard input: is empty"),
        (b"\0\1\2\3" * 9, [], "pass --format"),
        (b"label,logits_0\n0,nonsense\n", [], "standard input"),
        (b"PK\x03\x04 not an archive", [], "standard input: not a readable .npz"),
        (b"x" * 2000, ["--max-gb", "0.000001"], "--max-gb"),
    ],
)
def test_bad_standard_input_is_one_line(monkeypatch, capsys, content, words, says):
    piped(monkeypatch, content)
    assert main(["evaluate", "-", *words]) == 2
    err = capsys.readouterr().err
    assert says in err
    assert err.count("\n") == 1
    assert "avuc-" not in err


def test_a_terminal_is_not_waited_for(monkeypatch, capsys):
    piped(monkeypatch, b"", terminal=True)
    assert main(["evaluate", "-"]) == 2
    assert "nothing is piped" in capsys.readouterr().err


@pytest.mark.parametrize("form", ["npz", "npy", "parquet", "safetensors", "csv"])
def test_format_of(tmp_path, form):
    path = write(tmp_path / f"a.{form}", *overconfident(9, 0))
    assert format_of(path.read_bytes()[:64]) == form


def test_format_of_other_bytes():
    with pytest.raises(InputError, match="pass --format"):
        format_of(b"\xff\0\xff\0" * 8)


def test_a_real_pipe(validation):
    """In a shell: the result is JSON and nothing else."""
    code = '"$0" -m avuc evaluate - --replicates 0 --json - --quiet < "$1" | "$0" -m json.tool --compact'
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", code, sys.executable, str(validation)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["n"] == 400


# ---- --json - and --quiet


def test_json_to_standard_output(validation, tmp_path, capsys):
    words = [str(validation), "--replicates", "0"]
    assert main(["evaluate", *words, "--json", str(tmp_path / "a.json")]) == 0
    table = capsys.readouterr().out
    assert main(["evaluate", *words, "--json", "-"]) == 0
    out, err = capsys.readouterr()
    assert out == (tmp_path / "a.json").read_text()
    assert err == table.replace(f"written: {tmp_path / 'a.json'}\n", "")
    words += ["--method", "temperature", "--out", str(tmp_path / "cal.json")]
    assert main(["calibrate", *words, "--json", "-", "--quiet"]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["method"] == "temperature"
    assert not err
    assert (tmp_path / "cal.json").exists()


def test_quiet_prints_errors_and_warnings_only(validation, tmp_path, capsys):
    assert main(["evaluate", str(validation), "--replicates", "0", "--quiet"]) == 0
    assert capsys.readouterr() == ("", "")
    assert main(["evaluate", str(tmp_path / "missing.npz"), "--quiet"]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    np.savez(tmp_path / "one.npz", logits=[[2.0, 1.0]], labels=[0])
    words = ["--method", "temperature", "--out", str(tmp_path / "cal.json"), "--replicates", "0"]
    assert main(["calibrate", str(tmp_path / "one.npz"), *words, "--quiet"]) == 0
    out, err = capsys.readouterr()
    assert not out
    assert err.lstrip().startswith("WARNING")


def test_quiet_shows_no_progress(monkeypatch):
    from avuc.core import progress

    terminal = io.StringIO()
    terminal.isatty = lambda: True
    with progress.without_progress(), progress.Progress("rows", 2, stream=terminal) as bar:
        bar.advance(2)
    assert not terminal.getvalue()
    with progress.without_progress(False), progress.Progress("rows", 2, stream=terminal) as bar:
        bar.advance(2)
    assert "rows" in terminal.getvalue()


# ---- completion


def completed(tmp_path, *words):
    """What bash offers for the last word."""
    script = tmp_path / "avuc.bash"
    script.write_text(SCRIPTS["bash"](commands_of(_parser())))
    code = (
        'source "$1"; shift; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _avuc; '
        'for word in "${COMPREPLY[@]}"; do echo "$word"; done'
    )
    done = subprocess.run(
        ["bash", "-c", code, "bash", str(script), "avuc", *words], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    return done.stdout.split()


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
def test_bash_completes(tmp_path):
    assert completed(tmp_path, "ev") == ["evaluate"]
    assert {"evaluate", "apply", "completion", "--version"} <= set(completed(tmp_path, ""))
    assert completed(tmp_path, "evaluate", "a.npz", "--kind", "p") == ["probs", "percent"]
    assert completed(tmp_path, "calibrate", "--method", "") == [*METHODS, "auto"]
    assert completed(tmp_path, "evaluate", "--fixed") == ["--fixed-memory"]
    assert completed(tmp_path, "evaluate", "a") == []  # then bash offers file names
    assert completed(tmp_path, "evaluate", "--json", "") == []
    assert completed(tmp_path, "completion", "z") == ["zsh"]
    assert completed(tmp_path, "shifts", "g") == ["gallery"]
    assert completed(tmp_path, "shifts", "gallery", "a.png", "--prof") == ["--profile"]


@pytest.mark.parametrize("shell", list(SCRIPTS))
def test_scripts_know_every_option(shell, capsys):
    assert main(["completion", shell]) == 0
    script = capsys.readouterr().out
    for name, (text, options) in commands_of(_parser()).items():
        assert name in script
        assert text
        for option in options:
            for word in option.names:
                assert (
                    word if shell != "fish" else f"{'-l ' if word[1] == '-' else '-s '}{word.lstrip('-')}"
                ) in script
    interpreter = shutil.which(shell)
    if interpreter is not None:
        done = subprocess.run([interpreter, "-n", "/dev/stdin"], input=script, text=True, check=False)
        assert done.returncode == 0


# ---- without extras

BARE = """
import sys
class Hide:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {"mlxtend", "PIL", "matplotlib", "sklearn", "scipy", "pyarrow"}:
            raise ModuleNotFoundError(f"No module named {name!r}")
sys.meta_path.insert(0, Hide())
from avuc.cli import main
sys.exit(main(sys.argv[1:]))
"""


def test_demo_without_its_extra_is_one_line(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", BARE, "demo", "--out", str(tmp_path / "demo")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.count("\n") == 1
    assert done.stderr.startswith("avuc: avuc demo needs 'mlxtend.data'")
    assert done.stderr.endswith("pip install 'avuc[study]'\n")
    assert not (tmp_path / "demo").exists()
