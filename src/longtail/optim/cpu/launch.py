"""The compiled CPU step as a `Launch`: one call of ``step.cpp`` for parameters of one dtype."""

from array import array
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from longtail.optim.cpu.build import library
from longtail.optim.state import Row

Group = dict[str, Any]

# The flags of step.cpp.
_DECOUPLED, _MAXIMIZE = 1, 2
_FIRST = {"reset": 0, "ema": 32, "task": 4}
_SECOND = {"reset": 0, "ema": 8, "task": 16, "task_seen": 16 | 64}
_PAST = {"float32": 0, "uint8": 128}
_KINDS = {torch.float32: "float", torch.float64: "double"}


class CpuLaunch:
    """The kernel's table of parameters: eleven columns, those that change with each call last."""

    def __init__(
        self, kind: str, members: Sequence[Any], groups: Sequence[Group], captured: Any = None
    ) -> None:
        lib: Any = library()
        self._step = getattr(lib, f"longtail_step_{kind}")
        self._end_task = getattr(lib, f"longtail_end_task_{kind}")
        columns = [
            *zip(*(map(_address, x.row) for x in members), strict=True),
            [x.row.exp_avg.numel() for x in members],
            *zip(*(x.draw for x in members), strict=True),
        ]
        self._n = len(members)
        self._cells = array("q", [cell for column in columns for cell in column])
        self._cells.extend([0] * self._n)  # the gradients
        # Members lie in the order of their groups: where each group's end.
        self._ends = array("q", [sum(x.group <= i for x in members) for i in range(len(groups))])
        self._policies = [
            _FIRST[g["first_moment"]] | _SECOND[g["second_moment"]] | _PAST[g["past_dtype"]]
            for g in groups
        ]

    @staticmethod
    def kind_of(row: Row) -> str | None:
        """What the kernel that takes a parameter is called; None if there is none for it."""
        dtype = row.exp_avg.dtype
        if row.param is None or row.param.dtype is not dtype or not row.is_flat():
            return None
        return None if library() is None else _KINDS.get(dtype)

    def step(
        self,
        gradients: Sequence[Tensor | None],
        groups: Sequence[Group],
        decoupled: bool,
        grad_scale: Tensor | None,
        found_inf: Tensor | None,
    ) -> None:
        # An empty gradient has no address, and its steps count.
        addresses = [0 if g is None else g.data_ptr() or 1 for g in gradients]
        self._cells[10 * self._n :] = array("q", addresses)
        scalars = []
        for x in (grad_scale, found_inf):
            scalars.append(None if x is None else x.to("cpu", torch.float32))
        self._call(
            self._step,
            groups,
            [_DECOUPLED * decoupled | _MAXIMIZE * bool(g["maximize"]) for g in groups],
            *(None if x is None else x.data_ptr() for x in scalars),
        )

    def end_task(self, groups: Sequence[Group]) -> list[bool]:
        stepped = array("q", [0] * len(groups))
        self._call(self._end_task, groups, [0] * len(groups), stepped.buffer_info()[0])
        return [count > 0 for count in stepped]

    def _call(
        self, function: Any, groups: Sequence[Group], flags: list[int], *others: int | None
    ) -> None:
        all_flags = array("i", [a | b for a, b in zip(self._policies, flags, strict=True)])
        scalars = array("d")
        for g in groups:
            beta1, beta2 = g["betas"]
            scalars.extend(
                map(float, (g["lr"], beta1, beta2, g["beta3"], g["eps"], g["weight_decay"]))
            )
        function(
            self._n,
            self._cells.buffer_info()[0],
            len(groups),
            self._ends.buffer_info()[0],
            scalars.buffer_info()[0],
            all_flags.buffer_info()[0],
            *others,
            torch.get_num_threads(),
        )


def _address(tensor: Tensor | None) -> int:
    return 0 if tensor is None else tensor.data_ptr()
