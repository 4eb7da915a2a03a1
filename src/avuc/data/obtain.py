"""Find the files of a published data set: in the user's folder, else in the cache, else by download."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from avuc.core.errors import InputError
from avuc.data.download import fetch, locked
from avuc.data.files import KnownFile, cache_dir, check_digest, existing_path, folder_listing
from avuc.data.unpack import unpack

log: logging.Logger = logging.getLogger(__name__)
T = TypeVar("T")


def for_split(values: Mapping[str, T], split: str, name: str) -> T:
    """Return the value of a split, or raise an `InputError` that lists the splits of the data set `name`."""
    if split not in values:
        raise InputError(f"{name}: no split {split!r}; there are {', '.join(values)}")
    return values[split]


@dataclass(frozen=True)
class PublishedForm:
    """One of the forms in which a data set is published, such as CIFAR-10's pickles or its binary files.

    Attributes:
        title: name of the form, for messages.
        files: the files that a split needs.
        folders: where the files may be, relative to the user's folder. An archive is unpacked into the first.
        archive: the archive that contains the files, if there is one.
        members: every file of the archive that any split needs.
        archive_folder: the folder of the members inside the archive.
    """

    title: str
    files: tuple[KnownFile, ...]
    folders: tuple[str, ...]
    archive: KnownFile | None = None
    members: tuple[KnownFile, ...] = ()
    archive_folder: str = ""


@dataclass(frozen=True)
class ObtainedFiles:
    """The files of one split.

    Attributes:
        form: the form that was found.
        paths: its files, in the order of `form.files`.
        origin: one sentence on where they are and how they were checked; see `Dataset.origin`.
    """

    form: PublishedForm
    paths: tuple[Path, ...]
    origin: str


def obtain(
    name: str,
    forms: Sequence[PublishedForm],
    root: str | Path | None,
    *,
    download: bool | None = None,
    verify: bool = True,
) -> ObtainedFiles:
    """Return the files of one split, after comparing them with the published digests.

    Archives are unpacked into their own folder, or into the cache if that folder is read-only.

    Args:
        name: name of the data set, for messages and as the folder in the cache.
        forms: the forms in which it is published; the first is the one that is downloaded.
        root: the user's folder, or a file in it; None: the cache.
        download: whether missing files are downloaded; None: only if `root` is None.
        verify: compare digests.
    """
    base = existing_path(root) if root is not None and not download else Path(root or cache_dir() / name).expanduser()
    download = root is None if download is None else download
    if base.is_file():  # the user named the archive or one of the files
        base = base.parent
    for form in forms:
        if paths := _present(form, base):
            return _checked(form, paths, verify)
    for form in forms:
        if form.archive and (archive := base / form.archive.name).is_file():
            target = base if os.access(base, os.W_OK) else cache_dir() / name
            paths = _present(form, target)
            return _checked(form, paths, verify) if paths else _unpacked(form, archive, target, verify)
    if not download:
        _refuse_incomplete(forms, base)
        raise InputError(f"{base}: no {name} here ({folder_listing(base)}); expected {_expected(forms[0])}")
    form = forms[0]
    if form.archive:
        return _downloaded(form, form.archive, base, verify)
    return _checked(form, tuple(_present_or_fetched(form, known, base) for known in form.files), verify)


def _downloaded(form: PublishedForm, archive: KnownFile, base: Path, verify: bool) -> ObtainedFiles:
    """Fetch and unpack an archive once, even if several processes ask for it at the same time."""
    try:
        base.mkdir(parents=True, exist_ok=True)
        with locked(base / f".{archive.name}.lock"):
            if paths := _present(form, base):
                return _checked(form, paths, verify)
            path = fetch(archive, base)
            obtained = _unpacked(form, path, base, verify)
            path.unlink()  # its files are unpacked and checked
            return obtained
    except OSError as error:
        raise InputError(
            f"{base}: cannot store {archive.name} ({error.strerror or error}); set AVUC_DATA to another folder"
        ) from error


def _present(form: PublishedForm, base: Path) -> tuple[Path, ...]:
    """Return the files of a form if all of them are in one of its folders; otherwise nothing."""
    for folder in form.folders:
        paths = tuple(base / folder / known.name for known in form.files)
        if all(path.is_file() for path in paths):
            return paths
    return ()


def _present_or_fetched(form: PublishedForm, known: KnownFile, base: Path) -> Path:
    for folder in form.folders:
        if (path := base / folder / known.name).is_file():
            return path
    return fetch(known, base / form.folders[0])


def _checked(form: PublishedForm, paths: tuple[Path, ...], verify: bool) -> ObtainedFiles:
    if verify:
        siblings = form.members or form.files
        for path, known in zip(paths, form.files, strict=True):
            check_digest(path, known, others=siblings)
    state = f"{form.files[0].digest.partition(':')[0]} checked" if verify else "not checked"
    files = "1 file" if len(paths) == 1 else f"{len(paths)} files"
    origin = f"{form.title}, {files} in {paths[0].parent}, {state}"
    log.info("%s", origin)
    return ObtainedFiles(form, paths, origin)


def _unpacked(form: PublishedForm, archive: Path, base: Path, verify: bool) -> ObtainedFiles:
    assert form.archive is not None
    if verify:
        check_digest(archive, form.archive)
    members = {f"{form.archive_folder}/{known.name}": known for known in form.members}
    unpack(archive, members, base / form.folders[0], verify=verify)
    return _checked(form, _present(form, base), verify)


def _refuse_incomplete(forms: Sequence[PublishedForm], base: Path) -> None:
    """Raise an `InputError` that names the missing files if a form is there only in part."""
    for form in forms:
        for name in form.folders:
            folder = base / name
            missing = [known.name for known in form.files if not (folder / known.name).is_file()]
            if len(missing) < len(form.files) or (name and folder.is_dir()):
                raise InputError(
                    f"{folder}: {', '.join(missing)} missing from the {form.title}; found {folder_listing(folder)}; "
                    f"expected {_expected(form)}"
                )


def _expected(form: PublishedForm) -> str:
    """Return which files are expected where, and their address, for messages."""
    folder = f"{form.folders[0]}/" if form.folders[0] else ""
    names = ", ".join(known.name for known in form.files)
    source = form.archive or form.files[0]
    address = f" from {source.urls[0]}" if source.urls else ""
    return f"{folder}{{{names}}}, or {source}{address}" if form.archive else f"{folder}{{{names}}}{address}"


# names of version 0.1.0
Form: type[PublishedForm] = PublishedForm
Found: type[ObtainedFiles] = ObtainedFiles
pick: Callable[..., Any] = for_split
