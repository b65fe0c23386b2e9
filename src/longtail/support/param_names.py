"""The names of an optimizer's parameters, as they are without the wrappers around a model.

DDP, ``torch.compile``, FSDP, activation checkpointing and PEFT each put something of their own into
the names of a model's parameters. What is remembered of a parameter should be found again with
other wrappers, or none, so it is filed under the name that is left:

==============================================================  ============================
``module.encoder.weight`` (DDP, DataParallel, DeepSpeed)        ``encoder.weight``
``_orig_mod.encoder.weight`` (torch.compile)                    ``encoder.weight``
``encoder._fsdp_wrapped_module.weight`` (FSDP)                  ``encoder.weight``
``encoder._checkpoint_wrapped_module.weight``                   ``encoder.weight``
``_forward_module.encoder.weight`` (Fabric)                     ``encoder.weight``
``base_model.model.encoder.lora_A.default.weight`` (PEFT)       ``encoder.lora_A.weight``
``base_model.model.encoder.base_layer.weight`` (PEFT)           ``encoder.weight``
``base_model.model.head.modules_to_save.default.weight`` (PEFT) ``head.weight``
==============================================================  ============================
"""

from collections.abc import Callable, Collection, Mapping
from typing import Any

from torch import Tensor, nn

Renaming = Callable[[str], str] | Mapping[str, str]

_ANYWHERE = {
    "_orig_mod",
    "_fsdp_wrapped_module",
    "_checkpoint_wrapped_module",
    "_forward_module",
    "_original_module",
}
_PEFT = {"base_layer", "modules_to_save", "original_module"}


def normalise(name: str, adapters: Collection[str] = ()) -> str:
    """The name without what wrappers add to it.

    Args:
        adapters: names of PEFT's adapters, which are left out too; PEFT's prefixes are taken for
            such only where there is one.

    Example:
        >>> normalise("module._orig_mod.encoder.weight")
        'encoder.weight'
        >>> normalise("base_model.model.encoder.lora_A.default.weight", ["default"])
        'encoder.lora_A.weight'
    """
    parts = [part for part in name.split(".") if part not in _ANYWHERE]
    while len(parts) > 1 and parts[0] == "module":
        parts = parts[1:]
    if adapters:
        if parts[:2] == ["base_model", "model"]:
            parts = parts[2:]
        parts = [part for part in parts if part not in _PEFT and part not in adapters]
    return ".".join(parts)


def aliases_of(
    optimizer: Any, model: nn.Module | None, names: Renaming | None = None
) -> dict[Tensor, list[str]]:
    """Every parameter of the optimizer with its names, in the optimizer's order.

    A parameter that is used in several places (tied) has several.

    Args:
        optimizer: of torch.
        model: whose parameters they are; None for an optimizer that was given names
            (``model.named_parameters()``).
        names: renames what is left of a name; a mapping may leave names out.

    Raises:
        ValueError: for a parameter without a name, or a name with two parameters.
    """
    found = _from_optimizer(optimizer) if model is None else _from_model(optimizer, model)

    rename = renamer(names)
    result: dict[Tensor, list[str]] = {}
    taken: dict[str, Tensor] = {}
    for parameter, known in found.items():
        result[parameter] = list(dict.fromkeys(map(rename, known)))
        for name in result[parameter]:
            if taken.setdefault(name, parameter) is not parameter:
                raise ValueError(
                    f"Two parameters of the optimizer are called {name!r} once wrappers' prefixes "
                    "are gone; tell them apart with names="
                )
    return result


def renamer(names: Renaming | None) -> Callable[[str], str]:
    """A function and a mapping alike as a function; a mapping may leave names out."""
    if callable(names):
        return names
    if names is not None and not isinstance(names, Mapping):
        raise ValueError(f"Invalid names: {names!r}, neither a function nor a mapping of names")
    mapping = names or {}
    return lambda name: mapping.get(name, name)


def adapters_in(model: nn.Module) -> tuple[str, ...]:
    """What PEFT's adapters on a model are called; it may be wrapped."""
    for module in (model, *model.modules()):
        if config := getattr(module, "peft_config", None):
            return tuple(config)
    return ()


def _from_model(optimizer: Any, model: nn.Module) -> dict[Tensor, list[str]]:
    if any(type(module).__name__ == "FullyShardedDataParallel" for module in model.modules()):
        raise ValueError(
            "FullyShardedDataParallel flattens parameters and cuts them up, so that they have no "
            "names of their own: use fully_shard (FSDP2)"
        )
    adapters = adapters_in(model)
    known: dict[Tensor, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        known.setdefault(parameter, []).append(normalise(name, adapters))
    found = {}
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if parameter not in known:
                raise ValueError(
                    f"A parameter of shape {tuple(parameter.shape)} of the optimizer is none of "
                    f"the model's ({type(model).__name__}): is this the model that it trains?"
                )
            found[parameter] = known[parameter]
    return found


def _from_optimizer(optimizer: Any) -> dict[Tensor, list[str]]:
    found: dict[Tensor, list[str]] = {}
    for group in optimizer.param_groups:
        if "param_names" not in group:
            raise ValueError(
                "The optimizer does not know the names of its parameters: give the model, or make "
                "the optimizer from model.named_parameters()"
            )
        for name, parameter in zip(group["param_names"], group["params"], strict=True):
            found[parameter] = [normalise(name)]
    return found
