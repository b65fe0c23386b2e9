"""Which week a file is of, and which weights that week began from and ended with.

Of every tensor of the model, by name, up to sixteen numbers are kept, rounded to bfloat16: enough
to tell last week's weights from those of another week, and the same for a model that was saved in
fewer bytes. A tensor that is not whole in one place (sharded), or of another kind (quantised), is
left out; one that has grown is not compared, and neither are an adapter and the weights that it was
merged into.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from longtail.support.param_names import Renaming, adapters_in, normalise, renamer

_SAMPLES = 16
_STRIDE = 2654435761  # no row and no column is as long: samples lie all over the tensor
_PLAIN = (Tensor, nn.Parameter)
BASE, ADAPTER = "base", "adapter"


@dataclass(frozen=True)
class Sample:
    """A few numbers of a tensor.

    Attributes:
        shape: of the tensor.
        bits: the numbers as bfloat16, in hexadecimal digits.
        part: ``BASE`` of a tensor that an adapter of PEFT stands on, ``ADAPTER`` of the adapter.
    """

    shape: tuple[int, ...]
    bits: str
    part: str = ""

    @property
    def numbers(self) -> Tensor:
        if not self.bits:
            return torch.empty(0)
        return torch.frombuffer(bytearray.fromhex(self.bits), dtype=torch.bfloat16).float()


Fingerprint = Mapping[str, Sample]


@dataclass(frozen=True)
class Match:
    """What comparing weights with a fingerprint says.

    Attributes:
        different: the first tensor that differs by more than a rounding; None where none does.
        changed: how many numbers differ at all.
        merged: whether last week's adapter is part of the weights now; it is not compared then.
    """

    different: str | None
    changed: int = 0
    merged: bool = False


@dataclass(frozen=True)
class Stamp:
    """What a file says of the week that wrote it; of the first one it may not know all.

    Attributes:
        week: what it is called.
        began: the weights it began from.
        ended: the weights it ended with.
    """

    week: str | None = None
    began: Fingerprint = field(default_factory=dict)
    ended: Fingerprint = field(default_factory=dict)

    def to_json(self) -> str:
        fingerprints = {"began": self.began, "ended": self.ended}
        plain = {key: plain_of(value) for key, value in fingerprints.items()}
        return json.dumps({"week": self.week, **plain})

    @classmethod
    def of_json(cls, text: str) -> Stamp:
        """What `to_json` gave; an error of `tensor_file.DAMAGED` for anything else."""
        told = json.loads(text)
        week = told["week"]
        if week is not None and not isinstance(week, str):
            raise TypeError(f"{week!r} is no name of a week")
        return cls(week, fingerprint_of(told["began"]), fingerprint_of(told["ended"]))


def plain_of(fingerprint: Fingerprint) -> dict[str, list[Any]]:
    """A fingerprint as JSON has it."""
    return {name: [s.shape, s.bits, s.part] for name, s in fingerprint.items()}


def fingerprint_of(plain: dict[str, list[Any]]) -> dict[str, Sample]:
    """A fingerprint from JSON, every number of it looked at."""
    found: dict[str, Sample] = {}
    for name, (shape, bits, part) in plain.items():
        sample = found[name] = Sample(tuple(map(int, shape)), str(bits), str(part))
        count = min(_SAMPLES, math.prod(sample.shape))
        if len(sample.numbers) not in (count, min(_SAMPLES, 2 * count)):  # the latter of complex
            raise ValueError(f"{name} has {len(sample.numbers)} numbers, and not {count}")
    return found


@torch.no_grad()
def fingerprint(model: nn.Module, names: Renaming | None = None) -> dict[str, Sample]:
    """The fingerprint of a model's weights as they are now.

    Args:
        names: renames parameters, as for `longtail.save_memory`.
    """
    adapters, rename = adapters_in(model), renamer(names)
    found: dict[str, Sample] = {}
    for raw, parameter in model.named_parameters():
        parts = raw.split(".")
        if not _is_whole(parameter) or "original_module" in parts:  # that one is PEFT's copy
            continue
        part = BASE if "base_layer" in parts else ""
        if "modules_to_save" not in parts and not {*parts}.isdisjoint(adapters):
            part = ADAPTER
        name = rename(normalise(raw, adapters))
        found.setdefault(name, Sample(tuple(parameter.shape), _bits(parameter), part))
    return found


def _comparable(a: Sample, b: Sample) -> bool:
    return a.shape == b.shape and len(a.bits) == len(b.bits)


def compare(saved: Fingerprint, now: Fingerprint) -> Match:
    """Whether these may be the weights that a fingerprint was taken of."""
    shared = [name for name in saved if name in now and _comparable(saved[name], now[name])]
    different = [name for name in shared if not _alike(saved[name], now[name])]
    merged = any(saved[name].part == ADAPTER for name in different) and any(
        saved[name].part == BASE and saved[name].bits != now[name].bits for name in shared
    )
    if merged:
        shared = [name for name in shared if not saved[name].part]
        different = [name for name in different if name in shared]
    changed = sum(_changed(saved[name], now[name]) for name in shared)
    return Match(different[0] if different else None, changed, merged)


def _is_whole(parameter: Tensor) -> bool:
    """Whether there are numbers to be had of it, without asking other processes."""
    numbers = parameter.is_floating_point() or parameter.is_complex()
    here = type(parameter) in _PLAIN and parameter.device.type != "meta"
    return numbers and here and bool(parameter.numel())


def _bits(parameter: Tensor) -> str:
    values = torch.view_as_real(parameter) if parameter.is_complex() else parameter
    values = values.detach().reshape(1) if values.dim() == 0 else values.detach()
    count = values.numel()
    places = [i * _STRIDE % count for i in range(_SAMPLES)] if count > _SAMPLES else range(count)
    index = torch.unravel_index(torch.tensor([*places], device=values.device), values.shape)
    return bytes(values[index].bfloat16().cpu().view(torch.uint8).tolist()).hex()


def _alike(saved: Sample, now: Sample) -> bool:
    """Whether both may be roundings of the same numbers, to bfloat16 or to float16 before."""
    if saved.bits == now.bits:
        return True
    a, b = saved.numbers, now.numbers
    return torch.allclose(a, b, rtol=2**-7, atol=2**-24, equal_nan=True)


def _changed(saved: Sample, now: Sample) -> int:
    if saved.bits == now.bits:
        return 0
    return int((saved.numbers != now.numbers).sum())
