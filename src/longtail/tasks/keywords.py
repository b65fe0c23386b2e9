"""Models that take their inputs by name, as those of Hugging Face do: ``model(input_ids=...)``.

Inputs of a task that are a dict go to such a model as keywords, and of what it returns the
``logits`` are taken. So it trains as it is, without a module around it:

    model = AutoModelForSequenceClassification.from_pretrained(...)
    tasks = [("monday", ({"input_ids": ids, "attention_mask": mask}, labels), test), ...]
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from torch import nn

from longtail.tasks.columns import Ragged

# Kept in a module: whether the call in hand gave its inputs as a dict, and what it takes.
_BY_NAME, _TAKES = "_longtail_by_name", "_longtail_takes"
MASK = "attention_mask"


def accept_keywords(model: nn.Module) -> None:
    """Let a dict given to ``model`` stand for its keywords, where it takes inputs by name.

    Nothing changes for other models, nor for other calls of this one.
    """
    named, any_name = _names(model)
    if (len(named) > 1 or (any_name and not named)) and _BY_NAME not in vars(model):
        vars(model).update({_BY_NAME: False, _TAKES: (named, any_name)})
        model.register_forward_pre_hook(_as_keywords, with_kwargs=True)
        model.register_forward_hook(_logits)


def _names(model: nn.Module) -> tuple[list[str], bool]:
    """The names of what a model takes, and whether it takes any other as well."""
    try:
        found = inspect.signature(model.forward).parameters.values()
    except (TypeError, ValueError):  # compiled by something else than Python
        return [], False
    fixed = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
    any_name = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in found)
    return [p.name for p in found if p.kind not in fixed], any_name


def _as_keywords(
    model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
    inputs = args[0] if len(args) == 1 and not kwargs else None
    named, any_name = vars(model)[_TAKES]
    by_name = isinstance(inputs, dict) and (
        set(inputs) <= set(named) or (any_name and not named) or (any_name and named[0] in inputs)
    )
    vars(model)[_BY_NAME] = by_name
    if not by_name or inputs is None:
        return None
    takes_mask = MASK in named or (any_name and not named)
    return (), _padded(inputs, masked=takes_mask)


def _padded(inputs: Mapping[str, Any], *, masked: bool) -> dict[str, Any]:
    """Rows of different lengths as they are padded, with the mask that says so."""
    found = {k: v.padded if isinstance(v, Ragged) else v for k, v in inputs.items()}
    tokens = inputs.get("input_ids")
    if masked and MASK not in found and isinstance(tokens, Ragged):
        found[MASK] = tokens.mask().long()
    return found


def _logits(model: nn.Module, args: Any, outputs: Any) -> Any:
    if not vars(model)[_BY_NAME] or not isinstance(outputs, Mapping):
        return outputs
    if "logits" not in outputs:
        raise ValueError(
            f"{type(model).__name__} returned {', '.join(map(str, outputs))}: a model that is "
            "given its inputs by name returns a tensor, or logits"
        )
    return outputs["logits"]
