"""GQA's questions, as published: one JSON object from question id to question, or a folder of them.

    {"201030415": {"imageId": "n54424", "question": "What kind of furniture is brown?",
                   "answer": "couch", ...}}

A file of your own may leave out the rest.
"""

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from longtail_bench.vqa.gqa.members import members
from longtail_bench.vqa.problems import DUPLICATE, Problems
from longtail_bench.vqa.tasks import Question

NO_ANSWER = "question without an answer"
NO_IMAGE = "question without an image"
NO_TEXT = "question without a text"


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
    raise ValueError(f"{folder} has no {stem}.json")


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
            fields = [_text(record.get(name)) for name in ("imageId", "question", "answer")]
            image, text, answer = fields
            if not text:
                problems.note(NO_TEXT, where)
            elif not answer:
                problems.note(NO_ANSWER, where)
            elif not image:
                problems.note(NO_IMAGE, where)
            else:
                yield Question(id_, image, text, answer)


def _text(value: Any) -> str:
    """A text or a number; a list or an object where one should be counts as missing."""
    return str(value).strip() if isinstance(value, str | int | float) else ""
