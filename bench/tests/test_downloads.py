"""Fetching: checksums, resuming, several sources, and errors that say which file and which url."""

import hashlib
import io
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from longtail_bench.downloads import DownloadError, Meter, Remote, fetch, fetch_all, verify

BODY = bytes(range(256)) * 400
SHA = hashlib.sha256(BODY).hexdigest()
MD5 = hashlib.md5(BODY).hexdigest()


class Server(ThreadingHTTPServer):
    """Serves BODY; `ranges`: does it honour Range; `cuts`: after how many bytes it hangs up."""

    daemon_threads = True
    ranges = True
    body = BODY

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.cuts: list[int] = []
        self.asked: list[str | None] = []
        self.answers: list[int] = []

    def url(self, path: str = "a.bin") -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/{path}"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        server = self.server
        asked = self.headers.get("Range")
        server.asked.append(asked)
        if self.path == "/missing":
            self.send_error(404)
            return
        if self.path in ("/moved", "/circle"):
            self.send_response(302)
            self.send_header("Location", "/a.bin" if self.path == "/moved" else self.path)
            self.end_headers()
            return
        if server.answers:
            self.send_error(server.answers.pop(0))
            return
        start = int(asked.removeprefix("bytes=").rstrip("-")) if asked and server.ranges else 0
        if start >= len(server.body):
            self.send_error(416)
            return
        data = server.body[start:]
        self.send_response(206 if start else 200)
        if start:
            last = len(server.body) - 1
            self.send_header("Content-Range", f"bytes {start}-{last}/{len(server.body)}")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data[: server.cuts.pop(0)] if server.cuts else data)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as running:
        thread = threading.Thread(target=running.serve_forever, args=(0.01,))
        thread.start()
        yield running
        running.shutdown()
        thread.join()


def test_a_complete_file_has_its_name_and_no_part_is_left(server: Server, tmp_path: Path) -> None:
    seen: list[tuple[str, int, int | None]] = []
    path = fetch(
        Remote("a.bin", (server.url(),), sha256=SHA, md5=MD5),
        tmp_path / "new",
        progress=lambda *state: seen.append(state),
    )
    assert path.read_bytes() == BODY
    assert [file.name for file in path.parent.iterdir()] == ["a.bin"]
    assert seen[-1] == ("a.bin", len(BODY), len(BODY))


def test_a_file_at_hand_is_not_fetched_again(server: Server, tmp_path: Path) -> None:
    remote = Remote("a.bin", (server.url(),), sha256=SHA)
    fetch(remote, tmp_path)
    fetch(remote, tmp_path)
    assert len(server.asked) == 1


def test_a_broken_transfer_goes_on_where_it_stopped(server: Server, tmp_path: Path) -> None:
    server.cuts = [1000, 3000]
    path = fetch(Remote("a.bin", (server.url(),), sha256=SHA), tmp_path, pause=0)
    assert path.read_bytes() == BODY
    assert server.asked == [None, "bytes=1000-", "bytes=4000-"]


def test_a_later_call_resumes_the_part(server: Server, tmp_path: Path) -> None:
    (tmp_path / "a.bin.part").write_bytes(BODY[:5000])
    assert fetch(Remote("a.bin", (server.url(),), sha256=SHA), tmp_path).read_bytes() == BODY
    assert server.asked == ["bytes=5000-"]


def test_a_server_without_ranges_sends_all_again(server: Server, tmp_path: Path) -> None:
    server.ranges = False
    (tmp_path / "a.bin.part").write_bytes(BODY[:5000])
    assert fetch(Remote("a.bin", (server.url(),), sha256=SHA), tmp_path).read_bytes() == BODY


def test_a_complete_part_is_taken(server: Server, tmp_path: Path) -> None:
    (tmp_path / "a.bin.part").write_bytes(BODY)
    assert fetch(Remote("a.bin", (server.url(),), md5=MD5), tmp_path).read_bytes() == BODY


@pytest.mark.parametrize("stale", [b"x" * 5000, b"x" * (len(BODY) + 1)])
def test_a_stale_part_is_thrown_away(server: Server, tmp_path: Path, stale: bytes) -> None:
    (tmp_path / "a.bin.part").write_bytes(stale)
    path = fetch(Remote("a.bin", (server.url(),), sha256=SHA), tmp_path, pause=0)
    assert path.read_bytes() == BODY


def test_a_wrong_checksum_is_an_error_and_leaves_nothing(server: Server, tmp_path: Path) -> None:
    with pytest.raises(DownloadError, match=rf"a\.bin.*{server.url()}.*sha256.*{SHA}"):
        fetch(Remote("a.bin", (server.url(),), sha256="0" * 64), tmp_path, pause=0)
    assert list(tmp_path.iterdir()) == []
    assert len(server.asked) == 1


def test_a_missing_file_is_tried_elsewhere(server: Server, tmp_path: Path) -> None:
    remote = Remote("a.bin", (server.url("missing"), server.url()), sha256=SHA)
    assert fetch(remote, tmp_path, pause=0).read_bytes() == BODY
    assert len(server.asked) == 2  # asking for what is not there again would not change it


def test_redirections_are_followed_but_not_in_a_circle(server: Server, tmp_path: Path) -> None:
    moved = Remote("a.bin", (server.url("moved"),), sha256=SHA)
    assert fetch(moved, tmp_path, pause=0).read_bytes() == BODY
    with pytest.raises(DownloadError, match=r"circle answered 302 .*infinite loop\.$"):
        fetch(Remote("b.bin", (server.url("circle"),), sha256=SHA), tmp_path, pause=0)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.bin"]


def test_a_busy_server_is_asked_again(server: Server, tmp_path: Path) -> None:
    server.answers = [503, 429]
    assert fetch(Remote("a.bin", (server.url(),), sha256=SHA), tmp_path, pause=0).exists()


def test_the_error_names_every_url(server: Server, tmp_path: Path) -> None:
    urls = (server.url("missing"), "http://127.0.0.1:9/a.bin")
    with pytest.raises(DownloadError) as caught:
        fetch(Remote("a.bin", urls, sha256=SHA), tmp_path, attempts=2, pause=0)
    text = str(caught.value)
    assert all(url in text for url in urls)
    assert "404" in text
    assert str(tmp_path / "a.bin") in text


def test_local_files_are_fetched_too(tmp_path: Path) -> None:
    source = tmp_path / "source.bin"
    source.write_bytes(BODY)
    remotes = [Remote(name, (source.as_uri(),), sha256=SHA) for name in ("a", "b")]
    assert [p.read_bytes() for p in fetch_all(remotes, tmp_path / "to")] == [BODY, BODY]


def test_a_folder_that_cannot_be_made_is_the_users_to_change(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(BODY)
    remote = Remote("copy", ((tmp_path / "file").as_uri(),), sha256=SHA)
    with pytest.raises(ValueError, match=r"^.*below: cannot be made a folder \(Not a directory\)$"):
        fetch(remote, tmp_path / "file" / "below")


def test_a_changed_file_at_hand_is_reported_not_replaced(tmp_path: Path) -> None:
    path = tmp_path / "a.bin"
    path.write_bytes(b"mine")
    remote = Remote("a.bin", (), sha256=SHA)
    with pytest.raises(DownloadError, match=r"a\.bin is not the published"):
        fetch(remote, tmp_path)
    assert path.read_bytes() == b"mine"
    with pytest.raises(DownloadError, match="md5"):
        verify(path, Remote("a.bin", (), md5=MD5))


@pytest.mark.parametrize(
    ("terminal", "shown"),
    [(False, "a: 2.0 of 2.0 MB\n"), (True, "\ra: 1.0 of 2.0 MB\ra: 2.0 of 2.0 MB\n")],
)
def test_progress_is_a_line_a_file_in_a_pipe(terminal: bool, shown: str) -> None:
    stream = io.StringIO()
    stream.isatty = lambda: terminal
    meter = Meter(stream)
    meter("a", 1_000_000, 2_000_000)
    meter("a", 2_000_000, 2_000_000)
    assert stream.getvalue() == shown


@pytest.mark.parametrize(
    ("name", "url"), [("../a", "http://h/a"), ("", "http://h/a"), ("a", "ftp://h/a"), ("a", "/a")]
)
def test_odd_names_and_urls_are_refused(name: str, url: str) -> None:
    with pytest.raises(ValueError, match="Invalid"):
        Remote(name, (url,), sha256=SHA)


@pytest.mark.parametrize("link", ["symlink_to", "hardlink_to"])
@pytest.mark.parametrize("content", [b"", b"precious"])
def test_a_link_in_the_place_of_the_part_is_not_written_through(
    server: Server, tmp_path: Path, link: str, content: bytes
) -> None:
    other = tmp_path / "other"
    other.write_bytes(content)
    getattr(tmp_path / "a.bin.part", link)(other)
    assert fetch(Remote("a.bin", (server.url(),), sha256=SHA), tmp_path).read_bytes() == BODY
    assert other.read_bytes() == content
