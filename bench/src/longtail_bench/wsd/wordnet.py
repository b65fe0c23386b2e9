"""Read WordNet's dictionary files as Princeton ships them: senses of a word, glosses of senses.

Two kinds of files are needed: ``index.sense`` (one line per sense: key, offset, number, count) and
``data.noun``, ``.verb``, ``.adj``, ``.adv`` (one line per synset, its gloss after ``|``).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

# The first number of a sense key's right half names the part of speech; 5 is a satellite adjective.
POS_OF_TYPE = {"1": "noun", "2": "verb", "3": "adj", "4": "adv", "5": "adj"}
SENSES_OF_3_0 = 206_941
FILES = ("index.sense", "data.noun", "data.verb", "data.adj", "data.adv")


@dataclass(frozen=True)
class Sense:
    """One sense of one word: ``key`` is what follows the ``%`` of its sense key."""

    lemma: str
    key: str
    number: int
    count: int
    gloss: str

    @property
    def pos(self) -> str:
        return POS_OF_TYPE[self.key[0]]


class WordNet:
    """All senses of all words, in the order of ``index.sense`` within a word.

    Args:
        senses: word (lower case, spaces as underscores) to its senses.
    """

    def __init__(self, senses: dict[str, list[Sense]]) -> None:
        self.senses = senses

    def __len__(self) -> int:
        return sum(map(len, self.senses.values()))

    def lookup(self, lemma: str, key: str, number: int) -> Sense | None:
        """The sense a tagged corpus means by ``key`` (exactly, or up to a syntactic marker such as
        the ``(a)`` in ``5:00:00:all(a):00``) or else by part of speech and number."""
        candidates = self.senses.get(lemma, [])
        bare = _without_marker(key)
        for wanted in (key, bare):
            for sense in candidates:
                if sense.key == wanted:
                    return sense
        pos = POS_OF_TYPE.get(key[:1])
        for sense in candidates:
            if sense.pos == pos and sense.number == number:
                return sense
        return None


def read_wordnet(folder: str | Path, *, words: set[str] | None = None) -> WordNet:
    """Read a WordNet 3.0 ``dict`` folder.

    Args:
        folder: where ``index.sense`` and ``data.*`` lie, or a folder that has them in ``dict/``.
        words: only these words (reading all takes a few seconds).
    """
    folder = dict_folder(Path(folder))
    entries = _entries(folder / "index.sense", words)
    glosses = _glosses(folder, {(POS_OF_TYPE[key[0]], offset) for _, key, offset, _, _ in entries})
    senses: dict[str, list[Sense]] = {}
    for lemma, key, offset, number, count in entries:
        gloss = glosses[POS_OF_TYPE[key[0]], offset]
        senses.setdefault(lemma, []).append(Sense(lemma, key, number, count, gloss))
    return WordNet(senses)


def _entries(path: Path, words: set[str] | None) -> list[tuple[str, str, int, int, int]]:
    """Lemma, key, offset, number and count of each sense of `words`."""
    content = path.read_bytes()
    try:
        lines = content.decode("utf-8").removesuffix("\n").split("\n")
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{path}, line {_line(content, error.start)}: not text ({error.reason})"
        ) from None
    entries: list[tuple[str, str, int, int, int]] = []
    for line_number, line in enumerate(lines, 1):
        fields = line.split()
        lemma, _, key = fields[0].partition("%") if fields else ("", "", "")
        if len(fields) != 4 or key[:1] not in POS_OF_TYPE or not "".join(fields[1:]).isdigit():
            raise ValueError(
                f"{path}, line {line_number}: expected "
                f"'lemma%key offset number count', got {line.strip()!r}"
            )
        if words is None or lemma in words:
            entries.append((lemma, key, int(fields[1]), int(fields[2]), int(fields[3])))
    if len(lines) != SENSES_OF_3_0:
        raise ValueError(
            f"{path} has {len(lines)} senses; WordNet 3.0 has {SENSES_OF_3_0}: "
            "this is another version, or the file is cut off"
        )
    return entries


def _glosses(folder: Path, wanted: set[tuple[str, int]]) -> dict[tuple[str, int], str]:
    """Gloss by (part of speech, byte offset); an offset is where its line starts in the file."""
    found: dict[tuple[str, int], str] = {}
    for pos in ("noun", "verb", "adj", "adv"):
        content = (folder / f"data.{pos}").read_bytes()
        for offset in sorted(offset for kind, offset in wanted if kind == pos):
            end = content.find(b"\n", offset)
            line = content[offset : max(end, offset)].decode("utf-8", "replace")
            head, bar, gloss = line.partition("|")
            if not bar or not head.startswith(f"{offset:08d} "):
                cut = ": the file is cut off" if end < 0 else ""
                raise ValueError(
                    f"{folder / f'data.{pos}'}, line {_line(content, offset)}: no synset at byte "
                    f"{offset}, which index.sense points to{cut}"
                )
            found[pos, offset] = gloss.strip()
    return found


def _line(content: bytes, offset: int) -> int:
    return content.count(b"\n", 0, offset) + 1


def dict_folder(folder: Path) -> Path:
    if not folder.is_dir():
        raise ValueError(f"No such folder: {folder}")
    for candidate in (folder, folder / "dict"):
        if (candidate / "index.sense").is_file():
            missing = [name for name in FILES if not (candidate / name).is_file()]
            if missing:
                raise ValueError(f"{candidate} lacks {', '.join(missing)}")
            return candidate
    raise ValueError(f"{folder} has no index.sense: give WordNet 3.0's dict folder")


def _without_marker(key: str) -> str:
    for marker in ("(a)", "(p)", "(ip)"):
        key = key.replace(marker, "")
    return key
