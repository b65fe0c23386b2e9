"""Files from servers that are slow, that hang up, and that say nonsense."""

from __future__ import annotations

import hashlib
import io
import os
import subprocess
import sys
import tarfile
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

BODY = bytes(range(256)) * 16000  # some pieces as they are read and written
FETCH = """
import sys
from pathlib import Path
from longtail_bench.downloads import Remote, fetch
url, sha256, folder, name = sys.argv[1:]
remote = Remote("a.bin", (url,), sha256=sha256)
Path(folder, f"started-{name}").touch()
try:
    print(fetch(remote, Path(folder, "files"), pause=0, attempts=2))
except OSError as error:
    sys.exit(f"refused: {error}")
"""
# `longtail data fsmol`, published on the server of this test.
FSMOL = """
import dataclasses, hashlib, sys, time
import longtail_bench.fsmol.data as fsmol
from longtail.cli import main
url, folder = sys.argv[1:]
time.sleep = lambda seconds: None
fsmol.ARCHIVE = dataclasses.replace(fsmol.ARCHIVE, urls=(url + "/fsmol.tar",))
sha256 = hashlib.sha256(b'{"train": ["CHEMBL1"]}').hexdigest()
fsmol.TASK_LIST = dataclasses.replace(fsmol.TASK_LIST, urls=(url + "/list",), sha256=sha256)
sys.exit(main(["data", "fsmol", "--quiet", "--dir", folder]))
"""


class Publisher(ThreadingHTTPServer):
    """Serves `pages` by path: the bytes, and what its Content-Length says (None for nothing)."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.pages: dict[str, tuple[bytes, str | None]] = {}
        self.asked: list[str] = []
        self.until = lambda: True  # the second half of an answer waits for it
        self.url = f"http://127.0.0.1:{self.server_address[1]}"


class Handler(BaseHTTPRequestHandler):
    server: Publisher

    def do_GET(self) -> None:
        self.server.asked.append(self.path)
        body, length = self.server.pages[self.path]
        self.send_response(200)
        if length is not None:
            self.send_header("Content-Length", length)
        self.end_headers()
        half = len(body) // 2
        self.wfile.write(body[:half])
        end = time.monotonic() + 30
        while not self.server.until() and time.monotonic() < end:
            time.sleep(0.01)
        self.wfile.write(body[half:])

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def publisher() -> Iterator[Publisher]:
    with Publisher() as running:
        thread = threading.Thread(target=running.serve_forever, args=(0.01,))
        thread.start()
        yield running
        running.shutdown()
        thread.join()


def start(code: str, *arguments: object, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", code, *map(str, arguments)],
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_three_calls_for_one_file_fetch_it_once(publisher: Publisher, tmp_path: Path) -> None:
    publisher.pages["/a.bin"] = BODY, str(len(BODY))
    sha256 = hashlib.sha256(BODY).hexdigest()

    def all_started() -> bool:
        started = len(list(tmp_path.glob("started-*"))) == 3
        time.sleep(0.2 * started)  # the others come as far as the file
        return started

    publisher.until = all_started
    calls = [start(FETCH, publisher.url + "/a.bin", sha256, tmp_path, n) for n in range(3)]
    said = [call.communicate() for call in calls]
    assert [call.returncode for call in calls] == [0, 0, 0], said
    assert publisher.asked == ["/a.bin"]
    assert [path.name for path in (tmp_path / "files").iterdir()] == ["a.bin"]
    assert (tmp_path / "files" / "a.bin").read_bytes() == BODY


def test_a_call_takes_over_from_a_killed_one(publisher: Publisher, tmp_path: Path) -> None:
    publisher.pages["/a.bin"] = BODY, str(len(BODY))
    sha256 = hashlib.sha256(BODY).hexdigest()
    killed = threading.Event()
    publisher.until = killed.is_set
    first = start(FETCH, publisher.url + "/a.bin", sha256, tmp_path, 1)
    part = tmp_path / "files" / "a.bin.part"
    while not (part.exists() and part.stat().st_size):
        assert first.poll() is None
        time.sleep(0.01)
    second = start(FETCH, publisher.url + "/a.bin", sha256, tmp_path, 2)
    first.kill()
    first.communicate()
    killed.set()
    said = second.communicate()
    assert second.returncode == 0, said
    assert (tmp_path / "files" / "a.bin").read_bytes() == BODY


def test_a_length_that_is_no_number_is_one_sentence(publisher: Publisher, tmp_path: Path) -> None:
    publisher.pages["/a.bin"] = BODY, "abc"
    call = start(FETCH, publisher.url + "/a.bin", "0" * 64, tmp_path, 1)
    said = call.communicate()[1]
    assert said.startswith("refused: Could not fetch a.bin"), said
    assert f"{publisher.url}/a.bin answered with Content-Length 'abc'" in said
    assert len(said.strip().splitlines()) == 1


def test_a_download_needs_a_digest_or_a_check(publisher: Publisher, tmp_path: Path) -> None:
    """A server that gives no length may stop anywhere, and nobody else would notice."""
    publisher.pages["/a.bin"] = BODY[: len(BODY) // 2], None
    call = start(FETCH, publisher.url + "/a.bin", "", tmp_path, 1)
    assert "a.bin has neither a checksum nor a check" in call.communicate()[1]
    assert not (tmp_path / "files").exists()


def test_a_transfer_that_may_have_been_cut_says_so(publisher: Publisher, tmp_path: Path) -> None:
    publisher.pages["/a.bin"] = BODY[: len(BODY) // 2], None
    sha256 = hashlib.sha256(BODY).hexdigest()
    said = start(FETCH, publisher.url + "/a.bin", sha256, tmp_path, 1).communicate()[1]
    assert "gave no length: the transfer may have been cut" in said
    assert list((tmp_path / "files").iterdir()) == []


def archive() -> bytes:
    """Two assays as FS-Mol has them."""
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w") as tar:
        for number in (1, 2):
            lines = b'{"SMILES": "CCO", "Property": "1.0"}\n' * 20
            member = tarfile.TarInfo(f"fs-mol/train/CHEMBL{number}.jsonl")
            member.size = len(lines)
            tar.addfile(member, io.BytesIO(lines))
    return content.getvalue()


@pytest.mark.parametrize("blocks", [1, 3, None])  # within the first assay, after it, whole
def test_an_archive_of_fsmol_that_was_cut_is_not_taken(
    publisher: Publisher, tmp_path: Path, blocks: int | None
) -> None:
    whole = archive()
    publisher.pages["/list"] = b'{"train": ["CHEMBL1"]}', None
    publisher.pages["/fsmol.tar"] = whole[: None if blocks is None else blocks * 512], None
    call = start(FSMOL, publisher.url, tmp_path / "files", LONGTAIL_CACHE=str(tmp_path / "cache"))
    said = call.communicate()[1]
    assert call.returncode == 2, said
    assert len(said.strip().splitlines()) == 1, said
    if blocks is None:  # it is read, and is other than what was counted
        assert "is not FS-Mol as it was counted here" in said
    else:
        assert "is not a whole tar archive" in said
        assert "may have been cut" in said
        assert not (tmp_path / "files" / "fsmol.tar").exists()
