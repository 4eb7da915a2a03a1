"""What MkDocs does beside mkdocs.yml: the pages that are made when the site is built, and links to files outside docs/.

- `contributing.md` and `changelog.md` are the files of the repository's root.
- `api/PACKAGE.md` shows the docstrings of one public package; `api.md` links to them.
- A link to a script of the gallery becomes a link to its page. A link to another file that is not in docs/ (a
  benchmark, for example) becomes its text: the site is a folder of its own.
"""

from __future__ import annotations

import ast
import posixpath
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "avuc"
COPIES = {"contributing.md": "CONTRIBUTING.md", "changelog.md": "CHANGELOG.md"}
LINK = re.compile(
    r"(?<!!)\[([^\]]+)\]\(([^)\s#]+)(#[^)\s]*)?\)(\{[^}]*\})?"
)  # with its attributes, such as { .md-button }
# an entry of the table of `docs/api.md`, and the heading above it
ENTRY = re.compile(r"^\| `(\w+)` \|", re.MULTILINE)
HEADING = re.compile(r"^## (avuc[\w.]*)$", re.MULTILINE)


def exported(path: Path) -> list[str]:
    """The names in the `__all__` of a source file."""
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and "__all__" in [getattr(target, "id", "") for target in node.targets]:
            return [str(name) for name in ast.literal_eval(node.value)]
    return []


def public_packages() -> dict[str, list[str]]:
    """The packages and modules that have an `__all__`, with its names."""
    found = {}
    for path in sorted(SOURCE.rglob("*.py")):
        parts = path.relative_to(SOURCE.parent).with_suffix("").parts
        names = exported(path)
        if names:
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = names
    return found


def shown_names(package: str, packages: dict[str, list[str]]) -> list[str]:
    """The names whose docstrings a page has: for `avuc`, only those that none of its packages has."""
    names = sorted(packages[package], key=lambda name: (name.lower(), name))
    if package == "avuc":
        elsewhere = {name for other, names in packages.items() if other != "avuc" for name in names}
        names = [name for name in names if name not in elsewhere]
    return [name for name in names if f"{package}.{name}" not in packages]


def identifier(package: str, name: str) -> str:
    """The path of a public name; one that its module bears too (`metrics.avu`) is found inside of that module."""
    shadowed = SOURCE.parent.joinpath(*package.split("."), f"{name}.py").is_file()
    return f"{package}.{name}.{name}" if shadowed else f"{package}.{name}"


def package_page(package: str, packages: dict[str, list[str]]) -> str:
    """The Markdown of one page of the API reference."""
    options = "{members: false, show_root_heading: false, show_root_toc_entry: false}"
    parts = [f"# {package}\n\n::: {package}\n    options: {options}\n"]
    parts += [f"::: {identifier(package, name)}\n" for name in shown_names(package, packages)]
    return "\n".join(parts)


def without_outside_links(text: str, folder: str, files: Files) -> str:
    """Replace links from a page in `folder` to files outside docs/, and to examples without a page, by their text."""

    def one(match: re.Match[str]) -> str:
        words, target = match[1], match[2]
        place = posixpath.normpath(posixpath.join(folder, target))
        example = re.fullmatch(r"\.\./examples/gallery(?:/(\w+)\.py)?", place)
        made = f"gallery/{example[1] or 'index'}.md" if example else ""
        if made and files.get_file_from_path(made):  # it was run: its page is on the site
            return f"[{words}]({posixpath.relpath(made, folder or '.')}){match[4] or ''}"
        return words if place.startswith("..") and not re.match(r"\w+:", target) else match[0]

    return LINK.sub(one, text)


def with_links_to_packages(text: str, packages: dict[str, list[str]]) -> str:
    """Link every name of the table in `api.md` to its docstring."""
    parts = HEADING.split(text)
    homes = {name: package for package in packages if package != "avuc" for name in packages[package]}
    done = [parts[0]]
    for package, table in zip(parts[1::2], parts[2::2], strict=True):

        def link(match: re.Match[str], package: str = package) -> str:
            name = match[1]
            if f"{package}.{name}" in packages:
                return f"| [`{name}`](api/{package}.{name}.md) |"
            home = homes.get(name, package) if package == "avuc" else package
            return f"| [`{name}`](api/{home}.md#{identifier(home, name)}) |"

        done.append(f"## [{package}](api/{package}.md){ENTRY.sub(link, table)}")
    return "".join(done)


def pages_in(folder: str, config: MkDocsConfig) -> list[str]:
    """The pages of a folder of docs/, its index first."""
    found = (Path(config.docs_dir) / folder).rglob("*.md")
    pages = sorted(found, key=lambda path: (path.name != "index.md", path.as_posix()))
    return [path.relative_to(config.docs_dir).as_posix() for path in pages]


def gallery_pages(index: Path) -> list[str | dict[str, list[str]]]:
    """The pages of the gallery, in the topics and the order of its index."""
    if not index.exists():
        return []
    topics = index.read_text(encoding="utf-8").split("\n## ")[1:]
    listed = [(text.partition("\n")[0], re.findall(r"\]\((\w+)\.md\)", text)) for text in topics]
    return ["gallery/index.md", *({topic: [f"gallery/{name}.md" for name in names]} for topic, names in listed)]


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Fill the parts of the navigation that programs write: the API reference, the gallery and the studies."""
    assert config.nav is not None
    filled = {
        "API reference": ["api.md", *({name: f"api/{name}.md"} for name in public_packages())],
        "Gallery": gallery_pages(Path(config.docs_dir) / "gallery" / "index.md"),
    }
    studies = pages_in("studies", config)
    for section in config.nav:
        for name, pages in filled.items():
            if name in section:
                section[name] = pages
        for entry in section.get("Reproduction and studies", []):
            if isinstance(entry, dict) and "Beyond CIFAR" in entry:
                entry["Beyond CIFAR"] = studies
    config.nav = [section for section in config.nav if [] not in section.values()]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are made now."""
    for name, source in COPIES.items():
        text = (ROOT / source).read_text(encoding="utf-8").replace("](docs/", "](")
        files.append(File.generated(config, name, content=text))
    packages = public_packages()
    for package in packages:
        files.append(File.generated(config, f"api/{package}.md", content=package_page(package, packages)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Mend links, on every page."""
    name = page.file.src_uri
    if name in ("index.md", "get-started.md"):  # sections of one page: the room is better used by code
        page.meta["hide"] = ["navigation"]
    if name == "when-to-use-avuc.md" or name.startswith("studies/"):  # few sections, wide tables
        page.meta["hide"] = ["toc"]
    if name == "api.md":
        markdown = with_links_to_packages(markdown, public_packages())
    if name in COPIES:
        markdown = LINK.sub(lambda match: match[0] if known(match[2], files) else match[1], markdown)
    return without_outside_links(markdown, posixpath.dirname(name), files)


def known(target: str, files: Files) -> bool:
    """Whether a link of a file in the repository's root leads somewhere on the site."""
    return bool(re.match(r"\w+:", target)) or files.get_file_from_path(target) is not None
