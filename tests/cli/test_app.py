"""The command as a whole: help, version, exit codes, one line for every complaint."""

from __future__ import annotations

import io
import os
import re
import shlex
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch

import avuc
from avuc.calibration import CALIBRATORS
from avuc.cli import COMMANDS, app, main
from avuc.cli.console import Console
from avuc.core.calibrator_names import CALIBRATOR_NAMES
from avuc.core.errors import MissingExtra


def run(*words: str, **options):
    return subprocess.run(
        [sys.executable, "-m", "avuc", *words], capture_output=True, text=True, check=False, **options
    )


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (
            ["evaluate", "a.npz", "--replicate=9"],
            "=9; did you mean --replicates?; run 'avuc evaluate --help'",
        ),
        (["evaluate", "a.npz", "--max-g", "1"], "--max-g 1; did you mean --max-gb?; run 'avuc evaluate --help'"),
        (["report", "a", "b"], "unrecognized arguments: b; run 'avuc report --help'"),
        (
            ["shifts", "gallery", "a.png", "--out", "b.png", "--sed", "1"],
            "mean --seed?; run 'avuc shifts gallery --help'",
        ),
    ],
)
def test_an_unknown_option_is_answered_by_its_command(capsys, words, says):
    with pytest.raises(SystemExit) as ended:
        main(words)
    error = capsys.readouterr().err
    assert ended.value.code == 2
    assert says in error
    assert error.count("\n") == 1


def test_bare_command_prints_help(capsys):
    assert main([]) == 0
    out = capsys.readouterr().out
    for name in COMMANDS:
        assert f"avuc {name}" in out


@pytest.mark.parametrize("name", list(COMMANDS))
def test_every_command_has_help_with_an_example(name, capsys):
    with pytest.raises(SystemExit) as stop:
        main([name, "--help"])
    assert stop.value.code == 0
    out = capsys.readouterr().out
    assert f"  avuc {name}" in out.split("\nexample")[1]


def test_the_help_of_calibrate_explains_each_method_on_a_line_of_its_own(capsys):
    with pytest.raises(SystemExit):
        main(["calibrate", "--help"])
    listed = re.search(r"\nmethods:\n(.*?)\n\n", capsys.readouterr().out, re.DOTALL)[1]
    assert sorted(line.split()[0] for line in listed.splitlines()) == sorted((*CALIBRATOR_NAMES, "auto"))


def test_version(capsys):
    with pytest.raises(SystemExit) as stop:
        main(["--version"])
    assert stop.value.code == 0
    assert capsys.readouterr().out == f"avuc {avuc.__version__}\n"


def test_methods_are_those_of_the_library():
    assert tuple(CALIBRATORS) == CALIBRATOR_NAMES


@pytest.mark.parametrize(
    "words",
    [
        ["nonsense"],
        ["evaluate"],
        ["evaluate", "a.npz", "--kind", "odds"],
        ["evaluate", "a.npz", "--bins", "0"],
        ["evaluate", "a.npz", "--bins", "1001"],
        ["evaluate", "a.npz", "--bins", "1.5"],
        ["evaluate", "a.npz", "--seed", "-1"],
        ["evaluate", "a.npz", "--threshold", "nan"],
        ["evaluate", "a.npz", "--threshold", "-1"],
        ["evaluate", "a.npz", "--max-gb", "0"],
        ["evaluate", "a.npz", "--max-gb", "many"],
        ["evaluate", "a.npz", "--unknown"],
        ["calibrate", "a.npz", "--out", "b.json"],
        ["calibrate", "a.npz", "--method", "magic", "--out", "b.json"],
        ["calibrate", "a.npz", "--method", "temperature"],
    ],
)
def test_bad_arguments_are_one_line(words, capsys):
    with pytest.raises(SystemExit) as stop:
        main(words)
    assert stop.value.code == 2
    out, err = capsys.readouterr()
    assert not out
    assert err.startswith("avuc: ")
    assert err.count("\n") == 1
    assert "--help" in err


def test_examples_of_the_help_work_when_copied(tmp_path, monkeypatch, capsys):
    """The line that makes files to try a command on, and the first example of each command that reads predictions."""
    monkeypatch.chdir(tmp_path)
    for number, name in enumerate(("evaluate", "calibrate", "apply", "conformal", "select")):
        with pytest.raises(SystemExit):
            main([name, "--help"])
        text = capsys.readouterr().out
        if number == 0:
            program, _, code = shlex.split(text.partition("test.npz:\n")[2])
            assert program == "python"
            exec(code, {})
        example = re.search(r"examples:\n  avuc (.*)", text)[1]
        assert main(shlex.split(example)) == 0
        assert not capsys.readouterr().err


def test_subprocess_success_and_failure(validation, tmp_path):
    good = run("evaluate", str(validation), "--replicates", "0")
    assert (good.returncode, good.stderr) == (0, "")
    unwrapped = " ".join(good.stdout.split())  # a long folder name moves the ends of lines
    assert f"{validation}: 400 × 4 logits from key 'logits', labels from 'labels'" in unwrapped
    bad = run("evaluate", str(tmp_path / "nothing.npz"))
    assert (bad.returncode, bad.stdout) == (2, "")
    assert bad.stderr.startswith(f"avuc: {tmp_path / 'nothing.npz'}: ")
    assert bad.stderr.count("\n") == 1


def test_terminal_without_unicode(validation):
    done = run(
        "evaluate", str(validation), "--replicates", "50", env={"PYTHONIOENCODING": "ascii", "OMP_NUM_THREADS": "1"}
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.isascii()
    assert "400 x 4 logits" in " ".join(done.stdout.split())
    assert "\x1b" not in done.stdout


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_closed_and_full_outputs(validation, tmp_path):
    words = ["evaluate", str(validation), "--replicates", "0", "--json", str(tmp_path / "o.json")]
    closed = subprocess.run(["sh", "-c", '"$@" >&-', "sh", sys.executable, "-m", "avuc", *words], check=False)
    assert closed.returncode == 0
    assert (tmp_path / "o.json").exists()
    with open("/dev/full", "w") as full:
        found = subprocess.run(
            [sys.executable, "-m", "avuc", *words], stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    assert (found.returncode, found.stderr) == (1, "avuc: standard output: No space left on device\n")


def test_names_that_are_no_text_in_the_locale(validation, tmp_path):
    odd = tmp_path / "名ö.npz"
    odd.write_bytes(validation.read_bytes())
    plain = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "PYTHONIOENCODING": "ascii"}
    words = ["evaluate", str(odd), "--replicates", "0", "--report", str(tmp_path / "ö.html")]
    found = run(*words, env=os.environ | plain)
    assert (found.returncode, found.stderr) == (0, "")
    assert found.stdout.isascii()
    assert "<h1>" in (tmp_path / "ö.html").read_text(encoding="utf-8")


def test_the_command_modules_need_no_torch():
    """Torch comes with the work: neither the help needs it, nor the message that a file is missing."""
    code = (
        "import sys, types, pathlib\n"
        "package = types.ModuleType('avuc'); package.__path__ = [sys.argv[1]]; package.__version__ = '0'\n"
        "sys.modules['avuc'] = package\n"
        "from avuc.cli import main\n"
        "main([])\n"
        "fit = ['--method', 'temperature', '--out', 'cal.json']\n"
        "for name, more in ('evaluate', []), ('calibrate', fit), ('conformal', []), ('select', ['--risk', '.1']):\n"
        "    assert main([name, 'missing.npz', *more]) == 2\n"
        "    assert main([name, 'missing.npy', *more]) == 2\n"
        "assert main(['apply', 'missing.json', 'missing.npz', '--to', 'to.npz']) == 2\n"
        "assert 'torch' not in sys.modules and 'numpy' not in sys.modules and 'matplotlib' not in sys.modules\n"
    )
    where = str(avuc.__path__[0])
    done = subprocess.run([sys.executable, "-c", code, where], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("(No such file or directory); check the path and permissions\n") == 9


@pytest.mark.parametrize(
    ("error", "code", "says"),
    [
        (KeyboardInterrupt(), 130, "avuc: interrupted"),
        (MissingExtra("a report needs 'matplotlib': pip install 'avuc[report]'"), 2, "pip install 'avuc[report]'"),
        (MemoryError(), 2, "there is not enough memory; use smaller batches"),
        (lambda: np.empty(2**62, np.uint8), 2, "there is not enough memory"),
        (RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory:\nyou tried"), 2, "not enough memory"),
        (
            RuntimeError("DefaultCPUAllocator: not enough memory: you tried to allocate 8 bytes."),
            2,
            "not enough memory",
        ),
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."), 2, "the GPU has not enough memory"),
        (RuntimeError("DataLoader worker (pid 7) is killed by signal: Killed. "), 2, "use fewer workers"),
        (RecursionError("maximum recursion depth exceeded"), 2, "nested too deeply"),
        ("a\udcff.npz".encode, 2, "cannot be written or read as utf-8"),
        (PermissionError(13, "Permission denied", "a.npz"), 2, "a.npz: Permission denied"),
        (OSError(40, "Too many levels of symbolic links", "b.npz"), 2, "b.npz: Too many levels"),
        (OSError(5, "Input/output error", "c.npz"), 1, "c.npz: Input/output error"),
    ],
)
def test_what_stops_a_command(monkeypatch, capsys, error, code, says):
    def stop(_):
        if callable(error):
            error()
        raise error

    monkeypatch.setitem(app.COMMANDS, "evaluate", COMMANDS["evaluate"].__class__("", "", "", lambda parser: None, stop))
    assert main(["evaluate"]) == code
    err = capsys.readouterr().err
    assert says in err
    assert err.count("\n") == 1


def test_a_bug_is_not_hidden(monkeypatch):
    def stop(_):
        raise RuntimeError("a mistake")

    monkeypatch.setitem(app.COMMANDS, "evaluate", COMMANDS["evaluate"].__class__("", "", "", lambda parser: None, stop))
    with pytest.raises(RuntimeError, match="a mistake"):
        main(["evaluate"])


def test_out_of_memory_in_a_command(validation, fresh_python):
    """A real one: the process may not use more than it does after torch is imported."""
    code = (
        "import resource, sys, torch, numpy, avuc.evaluation.evaluate, avuc.evaluation.files\n"
        "from pathlib import Path\n"
        "from avuc.cli import main\n"
        "used = int(Path('/proc/self/statm').read_text().split()[0]) * resource.getpagesize()\n"
        "resource.setrlimit(resource.RLIMIT_AS, (used + 50_000_000,) * 2)\n"
        "sys.exit(main(['evaluate', sys.argv[1], '--replicates', '100000']))\n"
    )
    done = fresh_python(code, validation)
    assert done.returncode == 2, done.stderr
    assert done.stderr.count("\n") == 1
    assert "not enough memory" in done.stderr


# argparse itself takes no notice when its help is not read
@pytest.mark.parametrize(
    ("words", "code"),
    [(["--help"], 0), (["evaluate", "--help"], 0), ([], 0), (["--version"], 141), (["evaluate"], 141)],
)
def test_a_reader_that_has_gone(validation, words, code):
    """`avuc … | head`: no complaint, whatever is printed."""
    command = [sys.executable, "-m", "avuc", *words, *([str(validation)] if words == ["evaluate"] else [])]
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(command, stdout=write, stderr=subprocess.PIPE, text=True, check=False)
    os.close(write)
    assert (done.returncode, done.stderr) == (code, "")


@pytest.mark.parametrize("plain", [True, False])
def test_names_that_are_no_text_at_all(validation, tmp_path, plain):
    odd = os.fsdecode(os.fsencode(tmp_path) + b"/\xff\xfe.npz")
    Path(odd).write_bytes(validation.read_bytes())
    words = [sys.executable, "-m", "avuc", "evaluate", odd, "--replicates", "0", "--json", str(tmp_path / "o.json")]
    locale = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"} if plain else {}
    done = subprocess.run(words, capture_output=True, check=False, env=os.environ | locale)
    assert b"Traceback" not in done.stderr
    assert done.returncode == 0, done.stderr
    missing = subprocess.run([*words[:4], odd + "x.npz"], capture_output=True, check=False, env=os.environ | locale)
    assert missing.returncode == 2
    assert missing.stderr.count(b"\n") == 1


@pytest.mark.parametrize(("package", "words"), [("pyarrow", []), ("matplotlib", ["--report", "r.html"])])
def test_missing_extra_is_one_line(tmp_path, monkeypatch, capsys, package, words):
    import numpy as np

    monkeypatch.chdir(tmp_path)
    np.savez("a.npz", logits=np.eye(3), labels=[0, 1, 2])
    (tmp_path / "a.parquet").write_bytes(b"PAR1PAR1")
    monkeypatch.setitem(sys.modules, package, None)
    assert main(["evaluate", "a.parquet" if package == "pyarrow" else "a.npz", *words]) == 2
    err = capsys.readouterr().err
    assert f"'{package}'" in err
    assert "pip install 'avuc[" in err
    assert err.count("\n") == 1
    assert not (tmp_path / "r.html").exists()


class Terminal(io.StringIO):
    encoding = "utf-8"

    def isatty(self):
        return True


def test_colour_only_where_it_is_wanted(monkeypatch):
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    for _ in range(2):
        stream = Terminal()
        Console(stream).line("hello", "bold")
        assert stream.getvalue() == "\x1b[1mhello\x1b[0m\n"
        monkeypatch.setenv("NO_COLOR", "")  # an empty value means nothing: no-color.org
    monkeypatch.setenv("NO_COLOR", "1")
    stream = Terminal()
    Console(stream).line("hello", "bold")
    assert stream.getvalue() == "hello\n"


@pytest.mark.parametrize("columns", [60, 80, 100, 200])
def test_tables_fit(monkeypatch, columns):
    monkeypatch.setenv("COLUMNS", str(columns))
    stream = io.StringIO()
    console = Console(stream)
    console.table(("metric", "value", "what it means"), [("ECE", "0.1234", "a long explanation " * 8)], "<><")
    lines = stream.getvalue().splitlines()
    assert max(map(len, lines)) <= min(columns, 120)
    assert len(lines) > 3


def test_control_characters_are_shown_not_obeyed():
    stream = io.StringIO()
    Console(stream).line("a\x1b[31m\rb")
    assert stream.getvalue() == "a\\x1b[31m\\rb\n"


def test_warnings_are_one_line():
    """They showed the path of the command and its line of code, which say nothing."""
    before = warnings.formatwarning
    with app.one_line_warnings():
        said = warnings.formatwarning("all samples are equal", UserWarning, sys.argv[0], 8)
        other = warnings.formatwarning("old", DeprecationWarning, "my_net.py", 3)
    assert said == "avuc: all samples are equal\n"
    assert other == "my_net.py:3: DeprecationWarning: old\n"
    assert warnings.formatwarning is before
