"""Read SemCor 3.0's tag files as published: sentences, and which words carry which senses.

One element per line, attributes unquoted::

    <s snum=1>
    <wf cmd=done pos=VB lemma=say wnsn=1 lexsn=2:32:00::>said</wf>
    <punc>.</punc>
    </s>

A target word is a ``<wf cmd=done>`` with at least one sense number above zero; ``wnsn`` and
``lexsn`` may list several senses, separated by ``;``. A tag file ends with ``</contextfile>``.
"""

from __future__ import annotations

import lzma
import re
import tarfile
import zlib
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

# Which samples of the Brown corpus each part has: a11-15 is br-a11 to br-a15.
_PARTS = {
    "brown1": (
        "a01-02 a11-15 b13 b20 c01-02 c04 d01-04 e01-02 e04 e21 e24 e29 f03 f10 f19 f43 g01 g11 "
        "g15 h01 j01-20 j22-23 j37 j52-60 j70 k01-29 l11-12 m01-02 n05 p01 r05-09"
    ),
    "brown2": (
        "e22-23 e25-28 e30-31 f08 f13-18 f20-25 f33 f44 g12 g14 g16-23 g28 g31 g39 g43-44 h09 "
        "h11-18 h21 h24 j29-35 j38 j41-42 l08-10 l13-18 n09-12 n14-17 n20 p07 p09-10 p12 p24 r04"
    ),
    "brownv": (
        "a03-10 a16-44 b01-12 b14-19 b21-27 c03 c05-17 d05-17 e03 e05-20 f01-02 f04-07 f09 f11-12 "
        "g02-10 g13 h02-08 h10 j21 j24-28 l01-07 m03-06 n01-04 n06-08 p02-06 p08 r01-03"
    ),
}
_ELEMENT = re.compile(r"<(wf|punc)([^>]*)>(.*)</\1>$")
_STRUCTURE = re.compile(r"</?(contextfile|context|p|s)\b[^>]*>$")


@dataclass(frozen=True)
class Target:
    """A sense-tagged word: its place in its sentence, and (key, number) of each sense given."""

    sentence: int
    position: int
    lemma: str
    senses: tuple[tuple[str, int], ...]
    place: str  # "brown1/tagfiles/br-a01, line 575", for error messages


@dataclass(frozen=True)
class Corpus:
    """Sentences as lists of words (parts of a multi-word expression joined by a space)."""

    sentences: list[list[str]]
    targets: list[Target]
    files: tuple[str, ...]


def read_semcor(source: str | Path) -> Corpus:
    """Read all tag files of a folder or a tar archive (any compression tar knows).

    Args:
        source: the folder that holds brown1, brown2 and brownv (at any depth), or an archive of it.
    """
    source = Path(source)
    sentences: list[list[str]] = []
    targets: list[Target] = []
    files: list[str] = []
    for name, text in _tag_files(source):
        files.append(name)
        _read_file(name, text, sentences, targets)
    if not files:
        raise ValueError(f"{source} has no SemCor tag files (brown1/tagfiles/br-...)")
    if not targets:
        raise ValueError(f"{source} has {len(files)} tag files but no sense-tagged word")
    return Corpus(sentences, targets, tuple(files))


def missing_files(files: Iterable[str]) -> list[str]:
    """The tag files of SemCor 3.0 that are not among `files`, in order."""
    return sorted(set(_files_of_3_0()) - set(files))


def _files_of_3_0() -> Iterator[str]:
    for part, samples in _PARTS.items():
        for letter, first, last in re.findall(r"([a-r])(\d\d)(?:-(\d\d))?", samples):
            for number in range(int(first), int(last or first) + 1):
                yield f"{part}/tagfiles/br-{letter}{number:02d}"


def _read_file(name: str, text: str, sentences: list[list[str]], targets: list[Target]) -> None:
    words: list[str] | None = None
    line, place = "", f"{name}, line 1"
    for line_number, raw in enumerate(text.splitlines(), 1):
        if not raw.strip():
            continue
        line, place = raw.strip(), f"{name}, line {line_number}"
        if line.startswith("<s ") or line == "<s>":
            if words is not None:
                raise ValueError(f"{place}: <s> before the </s> of the sentence before")
            words = []
            continue
        if line == "</s>":
            if words is None:
                raise ValueError(f"{place}: </s> without <s>")
            sentences.append(words)
            words = None
            continue
        element = _ELEMENT.match(line)
        if element is None:
            if _STRUCTURE.match(line):
                continue
            raise ValueError(f"{place}: not a SemCor element: {line[:80]!r}")
        if words is None:
            raise ValueError(f"{place}: a word outside any sentence")
        if element[1] == "wf":
            target = _target(element[2], len(sentences), len(words), place)
            if target is not None:
                targets.append(target)
        words.append(element[3].replace("_", " "))
    # the last line of every published file: without it, some of the file may be gone unseen
    if words is not None or line != "</contextfile>":
        where = "inside a sentence" if words is not None else "without </contextfile>"
        what = f"ends {where}: the file is cut off" if line else "the file is empty"
        raise ValueError(f"{place}: {what}")


def _target(attributes: str, sentence: int, position: int, place: str) -> Target | None:
    values = dict(part.split("=", 1) for part in attributes.split() if "=" in part)
    if values.get("cmd") != "done" or "wnsn" not in values:
        return None
    numbers, keys = values["wnsn"].split(";"), values.get("lexsn", "").split(";")
    if "lemma" not in values or len(numbers) != len(keys):
        raise ValueError(f"{place}: a tagged word needs lemma, and wnsn and lexsn of equal length")
    try:
        senses = [(key, int(n)) for key, n in zip(keys, numbers, strict=True)]
    except ValueError:
        raise ValueError(f"{place}: wnsn={values['wnsn']} is not a list of numbers") from None
    tagged = tuple((key, number) for key, number in senses if number > 0)
    return Target(sentence, position, values["lemma"].lower(), tagged, place) if tagged else None


def _tag_files(source: Path) -> Iterator[tuple[str, str]]:
    """(name, content) in a fixed order, whatever order the folder or archive lists them in."""
    if source.is_dir():
        paths = {_short(p.as_posix()): p for p in source.rglob("tagfiles/*") if p.is_file()}
        for name in sorted(paths):
            yield name, paths[name].read_text("latin-1")
    elif source.is_file():
        with open_tar(source) as archive:
            members = {_short(m.name): m for m in archive.getmembers() if "/tagfiles/" in m.name}
            contents = {
                name: file.read().decode("latin-1")
                for name, member in members.items()
                if member.isfile() and (file := archive.extractfile(member)) is not None
            }
        yield from sorted(contents.items())
    else:
        raise ValueError(f"No such file or folder: {source}")


@contextmanager
def open_tar(path: Path) -> Iterator[tarfile.TarFile]:
    """An archive, of any compression; what is wrong with it is raised as a `ValueError`."""
    with ExitStack() as stack:
        try:
            archive = stack.enter_context(tarfile.open(path))
            archive.getmembers()
            # tarfile stops before the checksum that gzip has at its end
            while archive.fileobj is not None and archive.fileobj.read(1 << 20):
                pass
        except (tarfile.TarError, lzma.LZMAError, zlib.error, EOFError, OSError) as error:
            # tarfile has a line for every compression it tried
            reason = (str(error).splitlines() or [type(error).__name__])[0].rstrip(":")
            raise ValueError(f"{path} is not a readable tar archive: {reason}") from None
        try:
            yield archive  # a disk that is full is not the archive's fault
        except tarfile.TarError as error:  # such as a member that would lie outside the folder
            raise ValueError(f"{path} cannot be unpacked: {error}") from None


def _short(path: str) -> str:
    return "/".join(path.split("/")[-3:])
