"""Downloads from a server on this machine: whole, resumed, cut, wrong, refused, killed, at the same time."""

from __future__ import annotations

import hashlib
import multiprocessing
import os
import socket
import time
from collections.abc import Callable
from dataclasses import replace
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pytest

from avuc.data import download
from avuc.data.download import fetch
from avuc.data.files import KnownFile, cache_dir
from avuc.data.load import load_dataset

BODY = bytes(range(256)) * 4096  # 1 MB


def published(server: Any, body: bytes = BODY, name: str = "set.bin") -> KnownFile:
    server.files[name] = body
    return KnownFile(name, len(body), f"md5:{hashlib.md5(body).hexdigest()}", (server.url + name,))


def names(folder: Path) -> list[str]:
    """Everything there, except the empty files that locks are held on."""
    return sorted(path.name for path in folder.iterdir() if path.suffix != ".lock" or path.stat().st_size)


def test_a_file_arrives_whole(server: Any, tmp_path: Path) -> None:
    path = fetch(published(server), tmp_path / "new" / "folder")
    assert path.read_bytes() == BODY
    assert names(path.parent) == ["set.bin"]
    assert fetch(published(server), path.parent) == path
    assert len(server.asked) == 1  # the second call found it


@pytest.mark.parametrize("ranges", [True, False])
@pytest.mark.parametrize("have", [1, 1000, len(BODY) - 1, len(BODY)])
def test_a_part_is_resumed(server: Any, tmp_path: Path, ranges: bool, have: int) -> None:
    server.ranges = ranges
    (tmp_path / ".set.bin.part").write_bytes(BODY[:have])
    assert fetch(published(server), tmp_path).read_bytes() == BODY
    assert names(tmp_path) == ["set.bin"]
    assert server.asked == ([] if have == len(BODY) else [f"bytes={have}-"])


@pytest.mark.parametrize("part", [b"of another version", b"x" * len(BODY), b"y" * (len(BODY) + 5)])
def test_a_part_of_something_else_is_thrown_away(server: Any, tmp_path: Path, part: bytes) -> None:
    (tmp_path / ".set.bin.part").write_bytes(part)
    assert fetch(published(server), tmp_path).read_bytes() == BODY
    assert server.asked[-1] == ""


def test_a_range_that_was_not_asked_for_is_not_appended(server: Any, tmp_path: Path) -> None:
    (tmp_path / ".set.bin.part").write_bytes(BODY[:1000])
    server.shift_range = 5
    known = published(server)
    with pytest.raises(ValueError, match="offers"):
        fetch(known, tmp_path)
    server.shift_range = 0
    assert fetch(known, tmp_path).read_bytes() == BODY


def test_a_connection_that_keeps_breaking_is_continued(server: Any, tmp_path: Path) -> None:
    server.cut_after = len(BODY) // 3 + 1
    assert fetch(published(server), tmp_path).read_bytes() == BODY
    assert server.asked == ["", f"bytes={len(BODY) // 3 + 1}-", f"bytes={2 * (len(BODY) // 3 + 1)}-"]


def test_a_connection_that_breaks_too_often(server: Any, tmp_path: Path, refused: Callable[..., str]) -> None:
    server.cut_after = 1000
    known = published(server)
    line = refused(fetch, known, tmp_path)
    assert "kept 5,000 of 1,048,576 bytes; the next run resumes" in line
    assert names(tmp_path) == [".set.bin.part"]
    server.cut_after = None
    assert fetch(known, tmp_path).read_bytes() == BODY
    assert server.asked[-1] == "bytes=5000-"


def test_a_wrong_digest(server: Any, tmp_path: Path, refused: Callable[..., str]) -> None:
    known = published(server)
    server.files["set.bin"] = BODY[:-1] + b"?"
    line = refused(fetch, known, tmp_path)
    assert f"expected {known.digest}" in line
    assert not (tmp_path / "set.bin").exists()
    assert (tmp_path / ".set.bin.part").stat().st_size == 0


@pytest.mark.parametrize("length", [len(BODY) - 1, len(BODY) + 1, 300])
def test_another_size_is_not_even_begun(server: Any, tmp_path: Path, length: int, refused: Callable[..., str]) -> None:
    known = published(server)
    server.announce = length
    assert f"offers {length:,} bytes where 1,048,576 were expected" in refused(fetch, known, tmp_path)
    assert not (tmp_path / "set.bin").exists()


@pytest.mark.parametrize("status", [403, 404, 500, 503])
def test_http_errors(server: Any, tmp_path: Path, status: int, refused: Callable[..., str]) -> None:
    known = published(server)
    server.status = status
    line = refused(fetch, known, tmp_path)
    assert f"HTTP {status}" in line
    assert f"put {known} from {known.urls[0]} into {tmp_path}" in line


def test_the_second_address_helps(server: Any, tmp_path: Path) -> None:
    known = published(server)
    known = replace(known, urls=(server.url + "gone", *known.urls))
    assert fetch(known, tmp_path).read_bytes() == BODY


def test_no_network_says_where_to_put_which_file(tmp_path: Path, refused: Callable[..., str]) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}/set.bin"  # bound but not listening: connections are refused
        line = refused(fetch, KnownFile("set.bin", 10, "md5:0", (url,)), tmp_path)
    assert "refused" in line
    assert f"without a network, put set.bin (10 bytes, md5:0) from {url} into {tmp_path}" in line


def test_no_such_host(tmp_path: Path, refused: Callable[..., str], monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(*_: Any, **__: Any) -> Any:
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    for proxy in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(proxy, raising=False)
    monkeypatch.setenv("AVUC_DATA", str(tmp_path))
    for name in ("cifar10", "cifar100", "svhn", "mnist", "fashion-mnist"):
        line = refused(load_dataset, name, split="test")
        assert "Name or service not known" in line
        assert f"into {tmp_path / name}" in line
        assert "http" in line


def test_a_wrong_file_under_the_right_name_is_not_replaced(
    server: Any, tmp_path: Path, refused: Callable[..., str]
) -> None:
    (tmp_path / "set.bin").write_bytes(b"mine")
    assert "truncated" in refused(fetch, published(server), tmp_path)
    assert (tmp_path / "set.bin").read_bytes() == b"mine"


def test_a_folder_that_cannot_be_written(server: Any, tmp_path: Path, refused: Callable[..., str]) -> None:
    (tmp_path / "file").write_bytes(b"")
    assert "cannot store set.bin" in refused(fetch, published(server), tmp_path / "file" / "folder")


def fetch_there(environment: dict[str, str], known: KnownFile, folder: Path) -> None:
    os.environ.update(environment)  # the server of forks began with that of another test
    fetch(known, folder)


def start(known: KnownFile, folder: Path) -> BaseProcess:
    arguments = (dict(os.environ), known, folder)
    process = multiprocessing.get_context("forkserver").Process(target=fetch_there, args=arguments, daemon=True)
    process.start()
    return process


def wait_for(condition: Callable[[], bool], seconds: float = 200) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.01)


def test_a_killed_download_leaves_nothing_under_the_name_and_resumes(server: Any, tmp_path: Path) -> None:
    known = published(server)
    server.slow = 0.005
    part = tmp_path / ".set.bin.part"
    process = start(known, tmp_path)
    wait_for(lambda: part.exists() and part.stat().st_size > 0)
    process.kill()
    process.join()
    assert names(tmp_path) == [".set.bin.part"]
    have = part.stat().st_size
    assert 0 < have < len(BODY)
    server.slow = 0.0
    assert fetch(known, tmp_path).read_bytes() == BODY
    assert server.asked[-1] == f"bytes={have}-"
    assert names(tmp_path) == ["set.bin"]


@pytest.mark.skipif(download.fcntl is None, reason="this system has no flock")
def test_two_processes_fetch_once(server: Any, tmp_path: Path) -> None:
    known = published(server)
    server.slow = 0.001
    first = start(known, tmp_path)
    wait_for(lambda: len(server.asked) == 1)
    second = start(known, tmp_path)
    for process in (first, second):
        process.join(300)
        assert process.exitcode == 0
    assert len(server.asked) == 1
    assert names(tmp_path) == ["set.bin"]
    assert (tmp_path / "set.bin").read_bytes() == BODY


def test_the_cache_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("AVUC_DATA", raising=False)
    assert cache_dir() == tmp_path / "avuc"
    monkeypatch.setenv("AVUC_DATA", str(tmp_path / "mine"))
    assert cache_dir() == tmp_path / "mine"
    monkeypatch.delenv("AVUC_DATA")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_dir() == Path.home() / ".cache" / "avuc"
