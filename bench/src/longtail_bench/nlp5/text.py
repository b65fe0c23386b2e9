"""From questions to rows of token ids: "context question answer end", no row too long.

    ids = encode(context) + encode("\\n" question "\\n") + encode(answer) + [end]

A context that does not fit is cut to a window around the answer's place in it (from its start
where the answer is no part of it), and counted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from longtail_bench.decoder.tokens import Tokens
from longtail_bench.nlp5.examples import Example


@dataclass(frozen=True)
class Texts:
    """Rows of token ids: prompts, and answers with their end token; how many had to be cut."""

    prompts: list[list[int]]
    answers: list[list[int]]
    truncated: int


def tokenise(examples: Sequence[Example], tokens: Tokens, longest: int) -> Texts:
    """Rows of at most `longest` tokens each."""
    contexts = tokens.encode([e.context for e in examples])
    questions = tokens.encode([f"\n{e.question}\n" for e in examples])
    answers = [[*ids, tokens.end] for ids in tokens.encode([e.answers[0] for e in examples])]
    prompts: list[list[int]] = []
    truncated = 0
    for i, example in enumerate(examples):
        room = longest - len(questions[i]) - len(answers[i])
        if len(answers[i]) >= longest:
            raise ValueError(
                f"Invalid max_tokens: {longest}, an answer has {len(answers[i])} tokens: "
                f"{example.answers[0][:80]!r}"
            )
        if room < len(contexts[i]):
            truncated += 1
            before = _tokens_before(example, tokens)
            contexts[i] = window(contexts[i], before, len(answers[i]) - 1, max(room, 0))
        prompt = contexts[i] + questions[i]
        # a question that is too long even without context keeps its end
        prompts.append(prompt[max(0, len(prompt) + len(answers[i]) - longest) :])
    return Texts(prompts, answers, truncated)


def _tokens_before(example: Example, tokens: Tokens) -> int:
    if example.at <= 0:
        return 0
    return len(tokens.encode([example.context[: example.at]])[0])


def window(ids: list[int], start: int, length: int, room: int) -> list[int]:
    """`room` of the ids, with those from `start` to `start + length` in the middle if possible."""
    first = start + length // 2 - room // 2
    first = max(0, min(first, len(ids) - room))
    return ids[first : first + room]
