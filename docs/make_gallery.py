"""The gallery: runs every file of examples/gallery and writes docs/gallery/*.md with its output and its picture.

    python docs/make_gallery.py                # about a minute on two cores; a second time nothing is run again
    python docs/make_gallery.py groups ddp     # only these examples
    python docs/make_gallery.py --fresh        # all of them again

An example is a plain script. Its docstring has a title (one sentence), the lesson, and two fields, `Topic:` and
`Picture:` (what the picture shows, for readers who cannot see it). It saves the picture as NAME.svg in the working
directory. If a library is missing, it ends with `sys.exit("Skipped: the reason")`; its page then says so, and the next
call tries it again. A failing example fails the build, and so does a late one, except for those in `MAY_BE_LATE`.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import hashlib
import importlib
import multiprocessing
import os
import platform
import re
import resource
import runpy
import shutil
import signal
import sys
import tempfile
import time
import traceback
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
EXAMPLES, PAGES = ROOT / "examples" / "gallery", ROOT / "docs" / "gallery"
TOPICS = (
    "Measure",
    "Calibrate",
    "Train",
    "Posteriors",
    "Select and guarantee",
    "Shifts",
    "Studies",
    "Deploy",
    "Extend",
)
LIMIT = 180  # seconds for one example
TOTAL = 600  # no example is started after this time
# seconds until an example that starts servers of another library is given up, and its page says so
MAY_BE_LATE = {"ray_engine": 120}

STYLE = """<style>
.gallery { display: grid; grid-template-columns: repeat(auto-fill, minmax(11rem, 1fr)); gap: 1rem; }
.gallery p { margin: 0; }
.gallery img { width: 100%; height: 9rem; object-fit: contain; }
</style>"""


@dataclass(frozen=True)
class Example:
    """A file of the gallery.

    Args:
        path: the script.
        title: one sentence.
        lesson: the text below it.
        topic: one of `TOPICS`.
        alt: what the picture shows.
        code: the script without its docstring.
    """

    path: Path
    title: str
    lesson: str
    topic: str
    alt: str
    code: str

    @property
    def name(self) -> str:
        return self.path.stem


def read_example(path: Path) -> Example:
    """Return a script with its parts; ValueError says which one is missing."""
    source = path.read_text(encoding="utf-8")
    tree = ast.parse(source)
    text = ast.get_docstring(tree) or ""
    found = re.fullmatch(
        r"(?P<title>[^\n]+)\n\n(?P<lesson>.+)\n\nTopic: (?P<topic>[^\n]+)\nPicture: (?P<alt>.+)", text, re.S
    )
    if not found:
        raise ValueError(f"{path.name}: the docstring must be title, lesson, 'Topic: …' and 'Picture: …'")
    if found["topic"] not in TOPICS:
        raise ValueError(f"{path.name}: topic {found['topic']!r} is not one of {', '.join(TOPICS)}")
    first = tree.body[0].end_lineno or 0
    code = "\n".join(source.splitlines()[first:]).strip() + "\n"
    parts = {key: " ".join(value.split()) if key != "lesson" else value for key, value in found.groupdict().items()}
    return Example(path, code=code, **parts)


def key_of(example: Example) -> str:
    """Return the digest of everything that the result of an example depends on."""
    import matplotlib
    import sklearn
    import torch

    digest = hashlib.sha256(f"{platform.python_version()} {torch.__version__} {matplotlib.__version__}".encode())
    digest.update(sklearn.__version__.encode())
    for path in (example.path, Path(__file__), *sorted((ROOT / "src" / "avuc").rglob("*.py"))):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def run_here(path: Path, folder: Path) -> None:
    """Run a script in this process, with the charts' style; its output goes to `stdout` and `stderr` in the folder."""
    os.setsid()  # what it starts can be ended with it
    for stream, name in ((1, "stdout"), (2, "stderr")):
        os.dup2(os.open(folder / name, os.O_CREAT | os.O_WRONLY), stream)
    sys.stdout, sys.stderr = (os.fdopen(stream, "w", encoding="utf-8", buffering=1) for stream in (1, 2))
    sys.argv, sys.path[0] = [str(path)], str(path.parent)
    os.chdir(folder)
    os.environ |= {"SOURCE_DATE_EPOCH": "0", "OMP_NUM_THREADS": "1", "RAY_USAGE_STATS_ENABLED": "0"}
    code = 1
    try:
        set_style()
        runpy.run_path(str(path), run_name="__main__")
        code = 0
    except SystemExit as end:
        text = str(end.code or "")
        code = 0 if not text or text.startswith("Skipped: ") else 1
        if text:
            (folder / "stderr" if code else folder / "skipped").write_text(text, encoding="utf-8")
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        os._exit(code)


def set_style() -> None:
    """One thread, no window, the colours of avuc's charts."""
    import matplotlib as mpl
    import torch
    from cycler import cycler

    from avuc.core.palette import CHART_STYLE, light

    torch.set_num_threads(1)
    mpl.use("agg")
    colours = [light(role) for role in ("first", "wrong", "right", "outside", "ink")]
    sizes = {"figure.figsize": (6.0, 3.8), "figure.constrained_layout.use": True, "svg.hashsalt": "avuc"}
    card = {"figure.facecolor": light("card"), "axes.facecolor": light("card"), "legend.facecolor": light("card")}
    mpl.rcParams.update(
        CHART_STYLE | sizes | card | {"axes.prop_cycle": cycler(color=colours), "legend.frameon": False}
    )


def dark(svg: str) -> str:
    """Return a drawing with the colours for a dark page."""
    from avuc.core.palette import ROLES

    colours = dict(ROLES.values()) | {"#000000": ROLES["ink"][1]}
    return re.sub("#[0-9a-f]{6}", lambda found: colours.get(found[0], found[0]), svg)


def page(example: Example, output: str, skipped: str) -> str:
    """Return the page of an example."""
    name, alt = example.name, example.alt.replace("]", "")
    picture = f"![{alt}]({name}.svg#only-light)\n![{alt}]({name}-dark.svg#only-dark)\n"
    result = f"The example prints:\n\n```text\n{output}```\n" if output else ""
    if skipped:
        picture, result = f"This example was not run here: {skipped.removeprefix('Skipped: ')}\n", ""
    where = f"The script is `examples/gallery/{name}.py`; [all examples](index.md).\n"
    code = f"```python\n{example.code}```\n"
    return "\n".join((f"# {example.title.rstrip('.')}\n", f"{example.lesson}\n", picture, code, result, where))


def index(examples: list[Example], skipped: set[str]) -> str:
    """Return the page with a small picture of every example, by topic."""
    parts = [
        "# Gallery\n",
        "Each example is one script with one picture and one lesson, run when this site is built.\n",
        STYLE,
    ]
    for topic in TOPICS:
        chosen = [example for example in examples if example.topic == topic]
        if not chosen:
            continue
        parts.append(f'\n## {topic}\n\n<div class="gallery" markdown>\n')
        for example in chosen:
            small = (
                ""
                if example.name in skipped
                else "".join(
                    f"![]({example.name}{kind}.svg#only-{mode})" for mode, kind in (("light", ""), ("dark", "-dark"))
                )
            )
            parts.append(f"[{small}{example.title.rstrip('.')}]({example.name}.md)\n")
        parts.append("</div>")
    return "\n".join(parts) + "\n"


def keep(example: Example, folder: Path, pages: Path) -> str:
    """Move the result of a run to the pages, and return what is wrong with it."""
    skipped = (folder / "skipped").read_text(encoding="utf-8") if (folder / "skipped").exists() else ""
    drawn = folder / f"{example.name}.svg"
    kept = pages / drawn.name, pages / f"{example.name}-dark.svg"
    if not skipped:
        if not drawn.exists():
            return f"it saved no {drawn.name}"
        svg = drawn.read_text(encoding="utf-8")
        for path, text in zip(kept, (svg, dark(svg)), strict=True):
            path.write_text(text, encoding="utf-8")
    else:  # no picture of an earlier run
        for path in kept:
            path.unlink(missing_ok=True)
    output = "" if skipped else (folder / "stdout").read_text(encoding="utf-8")
    (pages / f"{example.name}.md").write_text(page(example, output, skipped), encoding="utf-8")
    key = pages / ".cache" / f"{example.name}.txt"
    key.unlink(missing_ok=True)
    if not skipped:  # what was skipped is tried again
        key.write_text(key_of(example))
    return ""


def end(process: multiprocessing.process.BaseProcess) -> None:
    """End a running process and all that it has started."""
    assert process.pid
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.kill()
    process.join()


def problem(example: Example, folder: Path, late: int | None, code: int | None) -> str:
    """Return why a run is not shown, or nothing. `late` is the limit that it has passed."""
    if late is not None and example.name in MAY_BE_LATE:
        reason = f"Skipped: it took longer than {late} s on the machine that built this site."
        (folder / "skipped").write_text(reason, encoding="utf-8")
        return ""
    if late is not None:
        return f"it ran longer than {late} s"
    return ((folder / "stderr").read_text(encoding="utf-8") or f"it ended with code {code}") if code else ""


def run_all(examples: list[Example], jobs: int, pages: Path) -> dict[str, str]:
    """Run examples, `jobs` at a time, and return what went wrong, by name."""
    for module in ("matplotlib.pyplot", "sklearn.datasets", "torch", "avuc.plot"):  # once, for all processes
        importlib.import_module(module)
    begin, context, failed = time.monotonic(), multiprocessing.get_context("fork"), {}
    waiting, running = sorted(examples, key=lambda example: example.name not in MAY_BE_LATE), []  # these wait most
    with tempfile.TemporaryDirectory() as scratch:
        while waiting or running:
            while waiting and len(running) < jobs:
                example = waiting.pop(0)
                if time.monotonic() - begin > TOTAL:
                    failed[example.name] = f"it was not started: the examples before it took {TOTAL} s"
                    continue
                (folder := Path(scratch) / example.name).mkdir()
                process = context.Process(target=run_here, args=(example.path, folder))
                process.start()
                running.append((example, folder, process, time.monotonic()))
            for one in list(running):
                example, folder, process, start = one
                process.join(0.05)
                limit = MAY_BE_LATE.get(example.name, LIMIT)
                late = process.exitcode is None and time.monotonic() - start > limit
                if process.exitcode is None and not late:
                    continue
                running.remove(one)
                if late:
                    end(process)
                wrong = problem(example, folder, limit if late else None, process.exitcode)
                wrong = wrong or keep(example, folder, pages)
                mark = " FAILED" if wrong else " not run" if (folder / "skipped").exists() else ""
                print(f"{example.name:24} {time.monotonic() - start:6.1f} s{mark}", flush=True)
                if wrong:
                    failed[example.name] = wrong
                shutil.rmtree(folder, ignore_errors=True)
    if examples:
        used = sum(resource.getrusage(resource.RUSAGE_CHILDREN)[:2])
        print(f"{len(examples)} examples: {time.monotonic() - begin:.0f} s, {used:.0f} s of CPU time")
    return failed


def cached(example: Example, pages: Path) -> bool:
    """Return whether the page of an example is that of its code, and of this package."""
    key = pages / ".cache" / f"{example.name}.txt"
    return key.exists() and key.read_text() == key_of(example) and (pages / f"{example.name}.md").exists()


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="only these examples (default: all)")
    parser.add_argument("--fresh", action="store_true", help="run all of them again")
    parser.add_argument("--jobs", type=int, default=2, help="examples that run at the same time (default 2)")
    parser.add_argument("--examples", type=Path, default=EXAMPLES, help="folder of the scripts")
    parser.add_argument("--pages", type=Path, default=PAGES, help="folder of the pages")
    chosen = parser.parse_args(arguments)
    pages = chosen.pages
    examples = [read_example(path) for path in sorted(chosen.examples.glob("*.py"))]
    (pages / ".cache").mkdir(parents=True, exist_ok=True)
    for path in [*pages.glob("*.*"), *(pages / ".cache").glob("*")]:  # of examples that are gone
        if path.is_file() and path.stem.removesuffix("-dark") not in {"index", *(one.name for one in examples)}:
            path.unlink()
    wanted = [one for one in examples if not chosen.names or one.name in chosen.names]
    failed = run_all([one for one in wanted if chosen.fresh or not cached(one, pages)], chosen.jobs, pages)
    for name, wrong in failed.items():
        print(f"\nexamples/gallery/{name}.py failed:\n{wrong}", file=sys.stderr)
        (pages / f"{name}.md").unlink(missing_ok=True)
    shown = [one for one in examples if (pages / f"{one.name}.md").exists()]
    skipped = {one.name for one in shown if not (pages / f"{one.name}.svg").exists()}
    (pages / "index.md").write_text(index(shown, skipped), encoding="utf-8")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
