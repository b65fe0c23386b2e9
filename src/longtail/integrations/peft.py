r"""PEFT: adapters week after week, with one memory.

*One adapter, trained on every week.* The adapter's weights are parameters like any other, filed
under names without the adapter's own ("encoder.lora_A.weight"), so `save_memory` and `load_memory`
do all of it: a direction of the adapter that mattered moves slowly.

*A new adapter every week, on top of merged ones.* `renew_adapter` adds last week's adapter to the
weights and starts another from nothing. Its update is :math:`B A`, with A drawn anew, so row i of
the new A has nothing to do with row i of the old one: what carries over is how much an *input*
(a column of A) or an *output* (a row of B) mattered, whatever the row of rank. `load_memory_of_old`
therefore gives every row of rank the mean of the old ones. B starts at zero, and while it is zero
A has no gradient.
"""

from __future__ import annotations

import os
from typing import Any

import torch
from peft import PeftModel, get_peft_model
from torch import nn

from longtail.memory import MemoryReport, load_memory
from longtail.optim.past import converted, read_past
from longtail.optim.state import state_dtype
from longtail.optim.wrappers import required
from longtail.support.param_names import Renaming, aliases_of

# Which dimension of an adapter's tensor is that of the rank.
_RANK = {"lora_A": 0, "lora_embedding_A": 0, "lora_B": 1, "lora_embedding_B": 1}


def renew_adapter(model: PeftModel, adapter: str | None = None) -> PeftModel:
    """Merge the adapter into the weights and put a new one, of the same configuration, on top.

    Make the optimizer after it: the parameters are others.

    Args:
        model: with one adapter.
        adapter: what the new one is called; by default like the old one.
    """
    if len(model.peft_config) != 1:
        known = ", ".join(model.peft_config)
        raise ValueError(f"renew_adapter() takes a model with one adapter, and this has {known}")
    ((name, config),) = model.peft_config.items()
    config.inference_mode = False
    merged: Any = model.merge_and_unload()
    # PEFT leaves its mark on the model, and takes it for a second adapter.
    if hasattr(merged, "peft_config"):
        del merged.peft_config
    renewed = get_peft_model(merged, config, adapter_name=adapter or name)
    assert isinstance(renewed, PeftModel)
    return renewed


def load_memory_of_old(
    optimizer: Any,
    path: str | os.PathLike[str],
    model: PeftModel,
    *,
    names: Renaming | None = None,
    quiet: bool = False,
) -> MemoryReport:
    """Start a new adapter with what the old one knew, averaged over its rows of rank.

    Args:
        optimizer: of the new adapter's parameters.
        path: as for `longtail.load_memory`.
        model: with the new adapter; its rank may differ from the old one's.
        names: as for `longtail.load_memory`.
        quiet: do not print the report.
    """
    report = load_memory(optimizer, path, model, names=names, quiet=quiet)
    spread_over_rank(optimizer, model, names)
    return report


@torch.no_grad()
def spread_over_rank(optimizer: Any, model: nn.Module, names: Renaming | None = None) -> None:
    """Give every row of rank of an adapter the mean past of all of them."""
    inner = required(optimizer, "spread_over_rank()")
    for parameter, (name, *_) in aliases_of(inner, model, names).items():
        dims = [_RANK[part] for part in name.split(".") if part in _RANK]
        past = inner.state.get(parameter, {}).get("past_exp_avg_sq")
        if dims and past is not None:
            mean = read_past(past, state_dtype(parameter)).mean(dims[0], keepdim=True)
            past.copy_(converted(mean, past.dtype).expand_as(past))
