"""Tables for the kernels that take several parameter groups in one launch."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from longtail.optim.cuda.plan import Kind, Plan, Tensors, captured, upload

FEW = 2**22
"""Elements up to which one launch for all groups is worth more than a kernel for each policy."""


class GroupPlan(Plan):
    """A plan for the parameters of ``count`` groups; ``groups`` says which group each is in."""

    kernels = "longtail.optim.cuda.group_kernels"

    def __init__(
        self,
        members: Sequence[Tensors | None],
        kinds: Sequence[Kind | None],
        groups: Sequence[int],
        count: int,
    ) -> None:
        super().__init__(members, kinds)
        self._groups = upload(torch.tensor(groups, dtype=torch.int32), self.device)
        sizes = [0 if x is None else x.exp_avg.numel() for x in members]
        programs = [0] * count
        for bucket in self._buckets:
            for i in bucket.indices:
                programs[groups[i]] += max(1, -(-sizes[i] // bucket.chunk))
        tally = torch.tensor([(n, 0, 0) for n in programs], dtype=torch.int32)
        self._tally = upload(tally, self.device)
        self._held: dict[str, tuple[Any, Tensor]] = {}

    def steps(
        self,
        gradients: tuple[int, ...],
        rates: Sequence[Tensor | None],
        settings: Sequence[tuple[float, ...]],
        pointers: tuple[Tensor | None, Tensor | None],
        policy: tuple[Any, ...],
    ) -> None:
        """Step the tensors whose gradient address is not 0.

        Args:
            rates: of each group the learning rate, where it is on the device.
            settings: of each group the kernel's scalars and flags.
            pointers: gradient scale and found_inf, where there are any.
            policy: DECAY and MAXIMIZE, the same for all groups.
        """
        if torch.cuda.is_current_stream_capturing():
            captured.append(rates)  # whose addresses the graph's table has
        tables = (
            self._placed(gradients),
            self._groups,
            self._table_of("settings", settings, torch.float32),
            self._table_of("rates", _addresses(rates), torch.int64),
        )
        self._launch("step_groups_kernel", (*tables, *pointers), (), 0, policy)

    def end_tasks(self, tasks_seen: Sequence[Tensor], ends: Sequence[tuple[float, ...]]) -> None:
        """End the task of all groups: ``ends`` has the kernel's scalars and rules of each."""
        if torch.cuda.is_current_stream_capturing():
            captured.append(tasks_seen)
        tables = (
            self._groups,
            self._table_of("ends", ends, torch.float32),
            self._tally,
            self._table_of("tasks_seen", _addresses(tasks_seen), torch.int64),
        )
        self._launch("end_groups_kernel", tables, (), 2, ())

    def _table_of(self, name: str, values: Sequence[Any], dtype: torch.dtype) -> Tensor:
        """The values on the device: copied over the last ones in the order of the stream."""
        if torch.cuda.is_current_stream_capturing():
            return upload(torch.tensor(values, dtype=dtype), self.device)
        last, table = self._held.get(name, (None, None))
        if table is None:
            table = upload(torch.tensor(values, dtype=dtype), self.device)
        elif last != values:
            table.copy_(torch.tensor(values, dtype=dtype), non_blocking=True)
        self._held[name] = values, table
        return table


def _addresses(tensors: Sequence[Tensor | None]) -> list[int]:
    return [0 if x is None else x.data_ptr() for x in tensors]
