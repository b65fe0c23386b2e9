"""GQA's questions, as published: one JSON object from question id to question, or a folder of them.

    {"201030415": {"imageId": "n54424", "question": "What kind of furniture is brown?",
                   "answer": "couch", "groups": {"global": "furniture", "local": "12q-..."},
                   "types": {"structural": "query", "semantic": "cat", "detailed": "categoryThat"},
                   "annotations": {"question": {"3": "17"}, ...},
                   "semantic": [{"operation": "select", "argument": "furniture (17)", ...}, ...]}}

Only the first four are required; a question file of your own may leave out the rest.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from longtail.benchmarks.vqa.gqa.stream import DUPLICATE, Problems, listed, members

NO_ANSWER = "question without an answer"
NO_IMAGE = "question without an image"
NO_TEXT = "question without a text"

_REFERENCE = re.compile(r"\(([^()]*)\)\s*$")
_ABOUT_OBJECTS = ("select", "relate", "verify rel", "choose rel")
_NO_OBJECT = frozenset(("_", "scene", ""))


@dataclass(frozen=True, slots=True)
class Question:
    """One question.

    Attributes:
        types: structural, semantic and detailed type.
        group: the global answer group ("color", "furniture"), "" where it has none.
        objects: ids of the scene graph's objects that the question is about.
        program: the functional program as (operation, argument) pairs.
    """

    id: str
    image: str
    text: str
    answer: str
    group: str
    types: tuple[str, str, str]
    objects: tuple[str, ...]
    program: tuple[tuple[str, str], ...]

    def program_names(self) -> set[str]:
        """The object names and categories that the program selects or relates."""
        found = set()
        for operation, argument in self.program:
            if operation in _ABOUT_OBJECTS:
                name = argument.split(",")[0] if operation != "select" else argument
                found.add(_REFERENCE.sub("", name).strip())
        return found - _NO_OBJECT


def question_files(folder: Path, split: str, kind: str = "balanced") -> list[Path]:
    """`SPLIT_KIND_questions.json`, or the chunks in the folder `SPLIT_KIND_questions`."""
    stem = f"{split}_{kind}_questions"
    for place in (folder, folder / "questions", folder / "questions1.2"):
        if (place / f"{stem}.json").is_file():
            return [place / f"{stem}.json"]
        if (place / stem).is_dir():
            chunks = sorted((place / stem).glob("*.json"), key=_chunk_number)
            if not chunks:
                raise ValueError(f"{place / stem} has no .json files")
            return chunks
    return []


def _chunk_number(path: Path) -> tuple[int, str]:
    digits = re.findall(r"\d+", path.stem)
    return (int(digits[-1]) if digits else -1, path.name)


def read_questions(paths: Iterable[Path], problems: Problems) -> Iterator[Question]:
    """The questions one by one; those that cannot be used are noted and left out."""
    seen: set[int | str] = set()
    for path in paths:
        for id_, record in members(path):
            where = f"{path.name}: question {id_}"
            key = int(id_) if id_.isdecimal() and id_[0] != "0" else id_  # half the memory
            if key in seen:
                problems.note(DUPLICATE, where)
                continue
            seen.add(key)
            question = _question(id_, record)
            if not question.text:
                problems.note(NO_TEXT, where)
            elif not question.answer:
                problems.note(NO_ANSWER, where)
            elif not question.image:
                problems.note(NO_IMAGE, where)
            else:
                yield question


def _question(id_: str, record: dict[str, Any]) -> Question:
    types = _object(record.get("types"))
    program = tuple(
        (_text(step.get("operation")), _text(step.get("argument")))
        for step in listed(record.get("semantic"))
        if isinstance(step, dict)
    )
    marked = _object(_object(record.get("annotations")).get("question")).values()
    referred = (_REFERENCE.search(argument) for _, argument in program)
    ids = [*map(str, marked), *(part.strip() for m in referred if m for part in m[1].split(","))]
    return Question(
        id_,
        _text(record.get("imageId")),
        _text(record.get("question")),
        _text(record.get("answer")),
        _text(_object(record.get("groups")).get("global")),
        (
            _text(types.get("structural")),
            _text(types.get("semantic")),
            _text(types.get("detailed")),
        ),
        tuple(dict.fromkeys(i for i in ids if i and i != "-")),
        program,
    )


def _object(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _text(value: Any) -> str:
    """A text or a number; a list or an object where one should be counts as missing."""
    return str(value).strip() if isinstance(value, str | int | float) else ""
