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
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

TAG_FILES = 352  # of SemCor 3.0
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
    """Sentences as lists of words (parts of a multi-word expression joined by a space).

    Attributes:
        files: how many they were read from.
    """

    sentences: list[list[str]]
    targets: list[Target]
    files: int


def read_semcor(source: str | Path) -> Corpus:
    """Read all tag files of a folder or a tar archive (any compression tar knows).

    Args:
        source: the folder that holds brown1, brown2 and brownv (at any depth), or an archive of it.
    """
    source = Path(source)
    sentences: list[list[str]] = []
    targets: list[Target] = []
    files = 0
    for name, text in _tag_files(source):
        files += 1
        _read_file(name, text, sentences, targets)
    if not files:
        raise ValueError(f"{source} has no SemCor tag files (brown1/tagfiles/br-...)")
    if not targets:
        raise ValueError(f"{source} has {files} tag files but no sense-tagged word")
    return Corpus(sentences, targets, files)


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
