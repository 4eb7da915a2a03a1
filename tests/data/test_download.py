"""Downloads from a server on this machine: whole, resumed, cut, wrong, refused, killed; and archives."""

from __future__ import annotations

import hashlib
import http.server
import io
import os
import signal
import socket
import subprocess
import sys
import tarfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from avuc.data import cifar, download, mnist
from avuc.data.download import fetch
from avuc.data.files import KnownFile, cache_dir
from avuc.data.load import load_dataset
from avuc.data.unpack import unpack

BODY = bytes(range(256)) * 4096  # 1 MB


@dataclass
class Server:
    """What the server does next, and what it was asked."""

    url: str
    files: dict[str, bytes] = field(default_factory=dict)
    ranges: bool = True
    cut_after: int | None = None  # close the connection after so many bytes of a body
    announce: int | None = None  # lie about the length
    status: int | None = None
    shift_range: int = 0  # answer a range with another one
    slow: float = 0.0  # seconds between kilobytes
    asked: list[str] = field(default_factory=list)  # the Range header of each request


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setenv("no_proxy", "127.0.0.1")

    class Handler(http.server.BaseHTTPRequestHandler):
        def log_message(self, *_: Any) -> None: ...

        def do_GET(self) -> None:
            wanted = self.headers.get("Range", "")
            state.asked.append(wanted)
            body = state.files.get(self.path.lstrip("/"))
            if state.status or body is None:
                self.send_error(state.status or 404)
                return
            start = 0
            if wanted and state.ranges:
                start = int(wanted.removeprefix("bytes=").rstrip("-")) + state.shift_range
                if start >= len(body):
                    self.send_error(416)
                    return
                self.send_response(206)
                self.send_header("Content-Range", f"bytes {start}-{len(body) - 1}/{len(body)}")
            else:
                self.send_response(200)
            rest = body[start:]
            self.send_header("Content-Length", str(state.announce or len(rest)))
            self.end_headers()
            if state.cut_after is not None:
                rest = rest[: state.cut_after]
            step = 1024 if state.slow else len(rest)
            try:
                for at in range(0, len(rest), max(step, 1)):
                    self.wfile.write(rest[at : at + step])
                    time.sleep(state.slow)
            except OSError:
                pass  # the client was killed, as the test wants

    class Threaded(http.server.ThreadingHTTPServer):
        daemon_threads = True

    with Threaded(("127.0.0.1", 0), Handler) as running:
        state = Server(f"http://127.0.0.1:{running.server_port}/")
        thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        yield state
        running.shutdown()
        thread.join()


def published(server: Server, body: bytes = BODY, name: str = "set.bin") -> KnownFile:
    server.files[name] = body
    return KnownFile(name, len(body), f"md5:{hashlib.md5(body).hexdigest()}", (server.url + name,))


def names(folder: Path) -> list[str]:
    """Everything there, except the empty files that locks are held on."""
    return sorted(path.name for path in folder.iterdir() if path.suffix != ".lock" or path.stat().st_size)


def test_a_file_arrives_whole(server: Server, tmp_path: Path) -> None:
    path = fetch(published(server), tmp_path / "new" / "folder")
    assert path.read_bytes() == BODY
    assert names(path.parent) == ["set.bin"]
    assert fetch(published(server), path.parent) == path
    assert len(server.asked) == 1  # the second call found it


@pytest.mark.parametrize("ranges", [True, False])
@pytest.mark.parametrize("have", [1, 1000, len(BODY) - 1, len(BODY)])
def test_a_part_is_resumed(server: Server, tmp_path: Path, ranges: bool, have: int) -> None:
    server.ranges = ranges
    (tmp_path / ".set.bin.part").write_bytes(BODY[:have])
    assert fetch(published(server), tmp_path).read_bytes() == BODY
    assert names(tmp_path) == ["set.bin"]
    assert server.asked == ([] if have == len(BODY) else [f"bytes={have}-"])


@pytest.mark.parametrize("part", [b"of another version", b"x" * len(BODY), b"y" * (len(BODY) + 5)])
def test_a_part_of_something_else_is_thrown_away(server: Server, tmp_path: Path, part: bytes) -> None:
    (tmp_path / ".set.bin.part").write_bytes(part)
    assert fetch(published(server), tmp_path).read_bytes() == BODY
    assert server.asked[-1] == ""


def test_a_range_that_was_not_asked_for_is_not_appended(server: Server, tmp_path: Path) -> None:
    (tmp_path / ".set.bin.part").write_bytes(BODY[:1000])
    server.shift_range = 5
    known = published(server)
    with pytest.raises(ValueError, match="offers"):
        fetch(known, tmp_path)
    server.shift_range = 0
    assert fetch(known, tmp_path).read_bytes() == BODY


def test_a_connection_that_keeps_breaking_is_continued(server: Server, tmp_path: Path) -> None:
    server.cut_after = len(BODY) // 3 + 1
    assert fetch(published(server), tmp_path).read_bytes() == BODY
    assert server.asked == ["", f"bytes={len(BODY) // 3 + 1}-", f"bytes={2 * (len(BODY) // 3 + 1)}-"]


def test_a_connection_that_breaks_too_often(server: Server, tmp_path: Path, refused: Callable[..., str]) -> None:
    server.cut_after = 1000
    known = published(server)
    line = refused(fetch, known, tmp_path)
    assert "kept 5,000 of 1,048,576 bytes; the next run resumes" in line
    assert names(tmp_path) == [".set.bin.part"]
    server.cut_after = None
    assert fetch(known, tmp_path).read_bytes() == BODY
    assert server.asked[-1] == "bytes=5000-"


def test_a_wrong_digest(server: Server, tmp_path: Path, refused: Callable[..., str]) -> None:
    known = published(server)
    server.files["set.bin"] = BODY[:-1] + b"?"
    line = refused(fetch, known, tmp_path)
    assert f"expected {known.digest}" in line
    assert not (tmp_path / "set.bin").exists()
    assert (tmp_path / ".set.bin.part").stat().st_size == 0


@pytest.mark.parametrize("length", [len(BODY) - 1, len(BODY) + 1, 300])
def test_another_size_is_not_even_begun(
    server: Server, tmp_path: Path, length: int, refused: Callable[..., str]
) -> None:
    known = published(server)
    server.announce = length
    assert f"offers {length:,} bytes where 1,048,576 were expected" in refused(fetch, known, tmp_path)
    assert not (tmp_path / "set.bin").exists()


@pytest.mark.parametrize("status", [403, 404, 500, 503])
def test_http_errors(server: Server, tmp_path: Path, status: int, refused: Callable[..., str]) -> None:
    known = published(server)
    server.status = status
    line = refused(fetch, known, tmp_path)
    assert f"HTTP {status}" in line
    assert f"put {known} from {known.urls[0]} into {tmp_path}" in line


def test_the_second_address_helps(server: Server, tmp_path: Path) -> None:
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
    server: Server, tmp_path: Path, refused: Callable[..., str]
) -> None:
    (tmp_path / "set.bin").write_bytes(b"mine")
    assert "truncated" in refused(fetch, published(server), tmp_path)
    assert (tmp_path / "set.bin").read_bytes() == b"mine"


def test_a_folder_that_cannot_be_written(server: Server, tmp_path: Path, refused: Callable[..., str]) -> None:
    (tmp_path / "file").write_bytes(b"")
    assert "cannot store set.bin" in refused(fetch, published(server), tmp_path / "file" / "folder")


FETCH = """
import sys
from pathlib import Path
from avuc.data.download import fetch
from avuc.data.files import KnownFile
name, size, digest, url, folder = sys.argv[1:]
fetch(KnownFile(name, int(size), digest, (url,)), Path(folder))
"""


def start(known: KnownFile, folder: Path) -> subprocess.Popen[bytes]:
    arguments = [known.name, str(known.size), known.digest, known.urls[0], str(folder)]
    return subprocess.Popen([sys.executable, "-c", FETCH, *arguments], stderr=subprocess.PIPE)


def wait_for(condition: Callable[[], bool], seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.01)


def test_a_killed_download_leaves_nothing_under_the_name_and_resumes(server: Server, tmp_path: Path) -> None:
    known = published(server)
    server.slow = 0.005
    part = tmp_path / ".set.bin.part"
    process = start(known, tmp_path)
    wait_for(lambda: part.exists() and part.stat().st_size > 0)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert names(tmp_path) == [".set.bin.part"]
    have = part.stat().st_size
    assert 0 < have < len(BODY)
    server.slow = 0.0
    assert fetch(known, tmp_path).read_bytes() == BODY
    assert server.asked[-1] == f"bytes={have}-"
    assert names(tmp_path) == ["set.bin"]


@pytest.mark.skipif(download.fcntl is None, reason="this system has no flock")
def test_two_processes_fetch_once(server: Server, tmp_path: Path) -> None:
    known = published(server)
    server.slow = 0.001
    first = start(known, tmp_path)
    wait_for(lambda: len(server.asked) == 1)
    second = start(known, tmp_path)
    for process in (first, second):
        _, errors = process.communicate(timeout=100)
        assert process.returncode == 0, errors.decode()
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


@pytest.mark.parametrize("small", ["mnist_gz"], indirect=True)
def test_a_set_of_files_is_downloaded_and_found_again(
    server: Server, small: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
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
    server: Server, small: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
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


LOAD = """
import sys
from dataclasses import replace
from avuc.data import cifar, load_dataset
from avuc.data.files import KnownFile
size, digest, url, *members = sys.argv[1:]
files = tuple(KnownFile(*(f(x) for f, x in zip((str, int, str), m.split(","), strict=True))) for m in members)
archive = KnownFile("cifar-10-python.tar.gz", int(size), digest, (url,))
form = replace(cifar.CIFAR10[0]["train"], archive=archive, files=files, members=files)
cifar.CIFAR10 = [{"train": form}]
print(len(load_dataset("cifar10", split="train")))
"""


@pytest.mark.skipif(download.fcntl is None, reason="this system has no flock")
@pytest.mark.parametrize("small", ["cifar10_python"], indirect=True)
def test_processes_download_and_unpack_once(
    server: Server, small: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    body = make_tar(small, "cifar-10-batches-py")
    server.files["cifar-10-python.tar.gz"] = body
    known = archived(small, monkeypatch, body, server.url)
    members = [f"{k.name},{k.size},{k.digest}" for k in cifar.CIFAR10[0]["train"].files]
    environment = os.environ | {"AVUC_DATA": str(tmp_path / "cache")}
    command = [sys.executable, "-c", LOAD, str(known.size), known.digest, known.urls[0], *members]
    processes = [subprocess.Popen(command, env=environment, stdout=subprocess.PIPE) for _ in range(2)]
    outputs = [process.communicate(timeout=100)[0] for process in processes]
    assert outputs == [b"100\n"] * 2
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


def write_tar(path: Path, entries: list[tuple[tarfile.TarInfo, bytes]]) -> None:
    with tarfile.open(path, "w") as tar:
        for entry, data in entries:
            tar.addfile(entry, io.BytesIO(data) if data else None)


def regular(name: str, data: bytes, size: int | None = None) -> tuple[tarfile.TarInfo, bytes]:
    entry = tarfile.TarInfo(name)
    entry.size = len(data) if size is None else size
    return entry, data


def special(name: str, kind: bytes, target: str = "") -> tuple[tarfile.TarInfo, bytes]:
    entry = tarfile.TarInfo(name)
    entry.type, entry.linkname = kind, target
    return entry, b""


DATA = b"0123456789"
KNOWN = {"set/a": KnownFile("a", 10, f"md5:{hashlib.md5(DATA).hexdigest()}")}


def test_only_known_members_are_written(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_bytes(b"safe")
    hostile = [
        regular("../victim", b"gone"),
        regular(str(victim), b"gone"),
        regular("set/../../victim", b"gone"),
        special("set/link", tarfile.SYMTYPE, str(tmp_path)),
        regular("set/link/victim", b"gone"),
        special("set/hard", tarfile.LNKTYPE, "../victim"),
        special("set/device", tarfile.CHRTYPE),
        regular("set/b", b"not asked for"),
    ]
    write_tar(tmp_path / "set.tar", [*hostile, regular("./set/a", DATA)])
    unpack(tmp_path / "set.tar", KNOWN, tmp_path / "out" / "set")
    assert victim.read_bytes() == b"safe"
    assert sorted(str(p.relative_to(tmp_path)) for p in tmp_path.rglob("*")) == [
        "out",
        "out/set",
        "out/set/a",
        "set.tar",
        "victim",
    ]


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ([special("set/a", tarfile.SYMTYPE, "/etc/passwd")], "not a regular file"),
        ([special("set/a", tarfile.LNKTYPE, "/etc/passwd")], "not a regular file"),
        ([special("set/a", tarfile.FIFOTYPE)], "not a regular file"),
        ([regular("set/a", DATA), regular("set/a", DATA)], "twice"),
        ([regular("set/a", b"x" * 30)], "30 bytes, expected 10"),
        ([regular("set/a", b"x" * 10)], "damaged or changed"),
        ([regular("set/a", b"x" * 9)], "truncated"),
        ([regular("set/b", DATA)], "does not hold a"),
        ([regular("set/junk", b"x", 10**12)], "far more than was published"),
        ([], "does not hold a"),
    ],
)
def test_a_wrong_member(
    entries: list[tuple[tarfile.TarInfo, bytes]], message: str, tmp_path: Path, refused: Callable[..., str]
) -> None:
    if entries and entries[0][0].size > 10**9:  # a header alone: the archive need not hold what it promises
        (tmp_path / "set.tar").write_bytes(entries[0][0].tobuf() + bytes(1024))
    else:
        write_tar(tmp_path / "set.tar", entries)
    assert message in refused(unpack, tmp_path / "set.tar", KNOWN, tmp_path / "out")
    assert not (tmp_path / "out" / "a").exists() or message == "twice"
