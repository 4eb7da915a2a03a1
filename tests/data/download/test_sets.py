"""Sets that are downloaded: as files and as archives, found again, damaged, asked for by several processes."""

from __future__ import annotations

import hashlib
import io
import multiprocessing
import os
import tarfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from avuc.data import cifar, download, mnist
from avuc.data.files import KnownFile
from avuc.data.load import load_dataset


def names(folder: Path) -> list[str]:
    """Everything there, except the empty files that locks are held on."""
    return sorted(path.name for path in folder.iterdir() if path.suffix != ".lock" or path.stat().st_size)


@pytest.mark.parametrize("small", ["mnist_gz"], indirect=True)
def test_a_set_of_files_is_downloaded_and_found_again(
    server: Any, small: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("AVUC_DATA", str(tmp_path / "cache"))
    form = mnist.MNIST["test"][0]
    for file in small.files:
        server.files[file.name] = file.read_bytes()
    local = replace(form, files=tuple(replace(k, urls=(server.url + k.name,)) for k in form.files))
    monkeypatch.setitem(mnist.MNIST, "test", [local])
    with pytest.raises(ValueError, match="no mnist here"):
        load_dataset("mnist", split="test", download=False)
    for _ in range(2):
        assert (load_dataset("mnist", split="test").images.numpy() == small.images).all()
    assert len(server.asked) == 2
    assert names(tmp_path / "cache" / "mnist") == sorted(file.name for file in small.files)


def make_tar(small: Any, inside: str, extra: dict[str, bytes] | None = None) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        contents = {f"{inside}/{file.name}": file.read_bytes() for file in small.files}
        for name, data in (contents | (extra or {})).items():
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            tar.addfile(entry, io.BytesIO(data))
    return buffer.getvalue()


def archived(small: Any, monkeypatch: pytest.MonkeyPatch, body: bytes, url: str = "http://127.0.0.1:1/") -> KnownFile:
    """Make `body` the published archive of the small CIFAR-10, with only its training files inside."""
    form = cifar.CIFAR10[0]["train"]
    known = KnownFile(
        "cifar-10-python.tar.gz", len(body), f"md5:{hashlib.md5(body).hexdigest()}", (f"{url}cifar-10-python.tar.gz",)
    )
    local = replace(form, archive=known, members=form.files)
    monkeypatch.setattr(cifar, "CIFAR10", [{"train": local}])
    return known


@pytest.mark.parametrize("small", ["cifar10_python"], indirect=True)
def test_an_archive_is_downloaded_unpacked_and_removed(
    server: Any, small: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    body = make_tar(small, "cifar-10-batches-py", {"cifar-10-batches-py/readme.html": b"hello"})
    server.files["cifar-10-python.tar.gz"] = body
    archived(small, monkeypatch, body, server.url)
    monkeypatch.setenv("AVUC_DATA", str(tmp_path / "cache"))
    for _ in range(2):
        assert (load_dataset("cifar10", split="train").images.numpy() == small.images).all()
    assert len(server.asked) == 1
    base = tmp_path / "cache" / "cifar10"
    assert names(base) == ["cifar-10-batches-py"]
    assert names(base / "cifar-10-batches-py") == sorted(file.name for file in small.files)


def load_archived(form: Any, environment: dict[str, str]) -> None:
    os.environ.update(environment)  # the server of forks began with that of another test
    cifar.CIFAR10 = [{"train": form}]
    assert len(load_dataset("cifar10", split="train")) == 100


@pytest.mark.skipif(download.fcntl is None, reason="this system has no flock")
@pytest.mark.parametrize("small", ["cifar10_python"], indirect=True)
def test_processes_download_and_unpack_once(
    server: Any, small: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    body = make_tar(small, "cifar-10-batches-py")
    server.files["cifar-10-python.tar.gz"] = body
    archived(small, monkeypatch, body, server.url)
    arguments = (cifar.CIFAR10[0]["train"], {**os.environ, "AVUC_DATA": str(tmp_path / "cache")})
    context = multiprocessing.get_context("forkserver")
    processes = [context.Process(target=load_archived, args=arguments, daemon=True) for _ in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(300)
    assert [process.exitcode for process in processes] == [0, 0]
    assert len(server.asked) == 1


@pytest.mark.parametrize("small", ["cifar10_python"], indirect=True)
def test_an_archive_in_a_read_only_folder_is_unpacked_into_the_cache(
    small: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    body = make_tar(small, "cifar-10-batches-py")
    known = archived(small, monkeypatch, body)
    home = tmp_path / "home"
    home.mkdir()
    (home / known.name).write_bytes(body)
    monkeypatch.setenv("AVUC_DATA", str(tmp_path / "cache"))
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    for _ in range(2):
        data = load_dataset("cifar10", home, "train")
        assert str(tmp_path / "cache" / "cifar10") in data.origin
    assert names(home) == [known.name]


@pytest.mark.parametrize("small", ["cifar10_python"], indirect=True)
def test_a_users_archive_is_unpacked_and_kept(small: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    body = make_tar(small, "cifar-10-batches-py")
    known = archived(small, monkeypatch, body)
    home = tmp_path / "home"
    home.mkdir()
    (home / known.name).write_bytes(body)
    assert len(load_dataset("cifar10", home / known.name, "train")) == len(small.images)  # also by its own path
    assert names(home) == ["cifar-10-batches-py", known.name]
    os.remove(home / "cifar-10-batches-py" / "data_batch_3")  # as a killed unpacking leaves it
    assert len(load_dataset("cifar10", home, "train")) == len(small.images)


@pytest.mark.parametrize("small", ["cifar10_python"], indirect=True)
@pytest.mark.parametrize("damage", ["truncated", "flipped", "empty", "text"])
@pytest.mark.parametrize("verify", [True, False])
def test_a_damaged_archive(
    small: Any, damage: str, verify: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, refused: Callable[..., str]
) -> None:
    body = make_tar(small, "cifar-10-batches-py")
    known = archived(small, monkeypatch, body)
    middle = len(body) // 2
    broken = {
        "truncated": body[:middle],
        "flipped": body[:middle] + bytes([body[middle] ^ 255]) + body[middle + 1 :],
        "empty": b"",
        "text": b"<html>please log in</html>",
    }[damage]
    (tmp_path / known.name).write_bytes(broken)
    assert str(tmp_path / known.name) in refused(load_dataset, "cifar10", tmp_path, "train", verify=verify)
    for path in tmp_path.rglob("*"):
        assert not path.name.endswith(".part")
