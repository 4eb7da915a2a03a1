"""Given a folder, find the published files in it; without one, find them in the cache or download them."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from avuc.core.errors import InputError
from avuc.data.download import fetch, locked
from avuc.data.files import KnownFile, as_path, cache_dir, check, listing
from avuc.data.unpack import unpack

__all__ = ["Form", "Found", "obtain", "pick"]

log = logging.getLogger(__name__)
T = TypeVar("T")


def pick(splits: Mapping[str, T], split: str, name: str) -> T:
    """The entry of a split, or a line that says which there are."""
    if split not in splits:
        raise InputError(f"{name}: no split {split!r}; there are {', '.join(splits)}")
    return splits[split]


@dataclass(frozen=True)
class Form:
    """One of the forms a set is published in: the files a split needs, and where they may lie under the folder."""

    title: str
    files: tuple[KnownFile, ...]
    folders: tuple[str, ...]  # relative to the user's folder; the first is where an archive is unpacked
    archive: KnownFile | None = None
    members: tuple[KnownFile, ...] = ()  # everything the archive holds that any split needs
    inside: str = ""  # the folder inside the archive


@dataclass(frozen=True)
class Found:
    """What was found: the form, the files in the form's order, and one sentence for people and for the study."""

    form: Form
    paths: tuple[Path, ...]
    origin: str


def obtain(
    name: str, forms: Sequence[Form], root: str | Path | None, *, download: bool | None = None, verify: bool = True
) -> Found:
    """The files of one split, checked.

    `download=None` means: only where no folder was given. Archives found on the way are unpacked beside themselves, or
    into the cache where that folder is read-only.
    """
    base = as_path(root) if root is not None and not download else Path(root or cache_dir() / name).expanduser()
    download = root is None if download is None else download
    if base.is_file():  # the user pointed at the archive or at one of the files
        base = base.parent
    for form in forms:
        if paths := _present(form, base):
            return _checked(form, paths, verify)
    for form in forms:
        if form.archive and (archive := base / form.archive.name).is_file():
            place = base if os.access(base, os.W_OK) else cache_dir() / name
            paths = _present(form, place)
            return _checked(form, paths, verify) if paths else _from_archive(form, archive, place, verify)
    _refuse_incomplete(forms, base, download)
    if not download:
        raise InputError(f"{base}: no {name} here ({listing(base)}); expected {_expected(forms[0])}")
    form = forms[0]
    if form.archive:
        return _downloaded(form, form.archive, base, verify)
    return _checked(form, tuple(_fetched(form, known, base) for known in form.files), verify)


def _downloaded(form: Form, archive: KnownFile, base: Path, verify: bool) -> Found:
    """Fetch and unpack an archive once, however many processes ask for it at the same time."""
    try:
        base.mkdir(parents=True, exist_ok=True)
        with locked(base / f".{archive.name}.lock"):
            if paths := _present(form, base):
                return _checked(form, paths, verify)
            path = fetch(archive, base)
            found = _from_archive(form, path, base, verify)
            path.unlink()  # unpacked and checked: it would only take space
            return found
    except OSError as error:
        raise InputError(f"{base}: cannot store {archive.name} ({error.strerror or error})") from error


def _present(form: Form, base: Path) -> tuple[Path, ...]:
    for folder in form.folders:
        paths = tuple(base / folder / known.name for known in form.files)
        if all(path.is_file() for path in paths):
            return paths
    return ()


def _fetched(form: Form, known: KnownFile, base: Path) -> Path:
    for folder in form.folders:
        if (path := base / folder / known.name).is_file():
            return path
    return fetch(known, base / form.folders[0])


def _checked(form: Form, paths: tuple[Path, ...], verify: bool) -> Found:
    if verify:
        siblings = form.members or form.files
        for path, known in zip(paths, form.files, strict=True):
            check(path, known, others=siblings)
    state = f"{form.files[0].digest.partition(':')[0]} checked" if verify else "not checked"
    files = "1 file" if len(paths) == 1 else f"{len(paths)} files"
    origin = f"{form.title}, {files} in {paths[0].parent}, {state}"
    log.info("%s", origin)
    return Found(form, paths, origin)


def _from_archive(form: Form, archive: Path, base: Path, verify: bool) -> Found:
    assert form.archive is not None
    if verify:
        check(archive, form.archive)
    folder = base / form.folders[0]
    unpack(archive, {f"{form.inside}/{known.name}": known for known in form.members}, folder, verify=verify)
    return _checked(form, _present(form, base), verify)


def _refuse_incomplete(forms: Sequence[Form], base: Path, download: bool) -> None:
    """Some files of a form are there and some are not: say which, unless they can be fetched."""
    if download:
        return
    for form in forms:
        for folder in form.folders:
            place = base / folder
            missing = [known.name for known in form.files if not (place / known.name).is_file()]
            if len(missing) < len(form.files) or (folder and place.is_dir()):
                raise InputError(
                    f"{place}: {', '.join(missing)} missing from the {form.title}; found {listing(place)}; "
                    f"expected {_expected(form)}"
                )


def _expected(form: Form) -> str:
    wanted = f"{form.folders[0]}/" if form.folders[0] else ""
    names = ", ".join(known.name for known in form.files)
    source = form.archive or form.files[0]
    where = f" from {source.urls[0]}" if source.urls else ""
    return f"{wanted}{{{names}}}, or {source}{where}" if form.archive else f"{wanted}{{{names}}}{where}"
