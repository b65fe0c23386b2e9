"""The CUDA kernels of an optimizer: of each parameter group, and of all groups together.

They own what they made ready for their next step: tables of addresses, and what must still hold for
them to be used. An optimizer with parameters on a GPU is stepped by these and not by a `Plan`.
"""

from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from longtail.optim import loops
from longtail.optim.past import Draw
from longtail.optim.plan import uses_fused
from longtail.optim.state import Settings, Tensors, count_task, fold, gather, is_plain, state_dtype

Group = dict[str, Any]


class Kernel(Protocol):
    """Steps and boundaries of a parameter group's tensors on one device, in one launch each.

    `step` and `end_task` take the lists that every implementation takes. `step_again` and
    `end_task_again` do without them, as long as only values and gradients have changed: with small
    models, making the lists is the slowest part of a step.
    """

    def step(
        self,
        tensors: Tensors,
        settings: Settings,
        grad_scale: Tensor | None,
        found_inf: Tensor | None,
    ) -> Sequence[int]:
        """Step what the kernel can take; the indices of the rest, which are as they were."""
        ...

    def end_task(
        self, tensors: Tensors, settings: Settings, draws: Sequence[Draw]
    ) -> Tensor | bool | None:
        """Whether a step had been taken; None, with nothing done, if it cannot take all."""
        ...

    def step_again(self, optimizer: Any, group: Group) -> bool:
        """Step a group that `step` has stepped; False, with nothing done, if `step` has to."""
        ...

    def end_task_again(self, optimizer: Any, group: Group) -> bool:
        """End a group's task and count it; False, with nothing done, if `end_task` has to."""
        ...

    def together(self) -> "Together":
        """A kernel for all groups of the optimizer whose first group has this kernel."""
        ...


class Together(Protocol):
    """Steps and boundaries of all groups of an optimizer in one launch each."""

    def step(self, optimizer: Any, known: bool) -> bool:
        """False, with nothing done, if each group must be stepped on its own.

        ``known`` says whether each group has been stepped by one kernel alone.
        """
        ...

    def end_task(self, optimizer: Any, known: bool) -> bool:
        """End the task of all groups and count it; False, with nothing done, if that cannot be."""
        ...


class GroupKernels:
    """The kernels of one parameter group, one for each device that its parameters are on."""

    def __init__(self) -> None:
        self._by_device: dict[torch.device, Kernel] = {}
        self.sole: Kernel | None = None
        """The one kernel that took all of the group: from then on it may try without the lists."""

    def step(
        self,
        tensors: Tensors,
        settings: Settings,
        grad_scale: Tensor | None,
        found_inf: Tensor | None,
    ) -> list[int]:
        """Step what kernels can take; the indices of the rest, which are as they were."""
        devices: dict[torch.device, list[int]] = {}
        for i, p in enumerate(tensors.params):
            devices.setdefault(p.device, []).append(i)

        left: list[int] = []
        for device, indices in devices.items():
            alone = len(devices) == 1
            chosen = tensors if alone else tensors.select(indices)
            kernel = self._on(device, chosen.params)
            if kernel is None:
                left += indices
                continue
            rest = kernel.step(
                chosen, settings, _moved(grad_scale, device), _moved(found_inf, device)
            )
            left += [indices[i] for i in rest]
            if alone and not rest:
                self.sole = kernel
        return left

    def end_task(
        self, tensors: Tensors, settings: Settings, draws: Sequence[Draw]
    ) -> Tensor | bool | None:
        """Whether a step had been taken; None, with nothing done, if no kernel can take all."""
        if not all(map(is_plain, tensors.exp_avgs)):
            return None
        kernel = self._on(tensors.steps[0].device, tensors.exp_avgs)
        return None if kernel is None else kernel.end_task(tensors, settings, draws)

    def _on(self, device: torch.device, tensors: list[Tensor]) -> Kernel | None:
        make = kernel_for(device, tensors)
        if make is None:
            return None
        if device not in self._by_device:
            self._by_device[device] = make()
        return self._by_device[device]


class Kernels:
    """The kernels of an optimizer: those of each group, and one for all groups together."""

    def __init__(self) -> None:
        self._groups: list[GroupKernels] = []
        self._first: Kernel | None = None
        self._together: Together | None = None

    def of(self, i: int) -> GroupKernels:
        """Those of the ``i``-th group. A kernel finds out by itself if the group was replaced."""
        while i >= len(self._groups):
            self._groups.append(GroupKernels())
        return self._groups[i]

    def step(self, optimizer: Any) -> list[Group]:
        """Step what kernels can take; the groups that are not fused are left, and returned."""
        together = self._for_all(optimizer)
        if together is not None and together.step(optimizer, self._known(optimizer)):
            return []
        left = []
        for i, group in enumerate(optimizer.param_groups):
            own = self.of(i)
            if own.sole is not None and own.sole.step_again(optimizer, group):
                continue
            if uses_fused(group):
                self._step_group(optimizer, group, own)
            else:
                left.append(group)
        return left

    def end_task(self, optimizer: Any) -> None:
        """End the task of all groups, fused or not."""
        together = self._for_all(optimizer)
        if together is not None and together.end_task(optimizer, self._known(optimizer)):
            return
        for i, group in enumerate(optimizer.param_groups):
            own = self.of(i)
            if own.sole is not None and own.sole.end_task_again(optimizer, group):
                continue
            settings = Settings.of(group, optimizer._decoupled_weight_decay)
            took: list[Tensor | bool] = []
            for tensors, draws in gather(optimizer.state, group):
                done = own.end_task(tensors, settings, draws) if uses_fused(group) else None
                took.append(fold(tensors, settings, draws) if done is None else done)
            count_task(group, took)

    def _step_group(self, optimizer: Any, group: Group, own: GroupKernels) -> None:
        tensors = Tensors.none()
        optimizer._init_group(group, *tensors)
        settings = Settings.of(group, optimizer._decoupled_weight_decay)
        scale = getattr(optimizer, "grad_scale", None)
        found_inf = getattr(optimizer, "found_inf", None)
        left = own.step(tensors, settings, scale, found_inf)
        if left and not (found_inf is not None and bool(found_inf)):
            rest = tensors.select(left)
            if scale is not None:
                # A scale of 65536, where GradScaler starts, is infinite in float16.
                for j, (p, g) in enumerate(zip(rest.params, rest.grads, strict=True)):
                    rest.grads[j] = g.to(state_dtype(p)) / scale.to(g.device)
            loops.step(rest, settings, foreach=False)

    def _for_all(self, optimizer: Any) -> Together | None:
        if len(optimizer.param_groups) < 2:
            return None
        first = self.of(0).sole
        if first is not self._first:  # as at its first step, or on another device
            self._first = first
            self._together = None if first is None else first.together()
        return self._together

    def _known(self, optimizer: Any) -> bool:
        return all(self.of(i).sole is not None for i in range(len(optimizer.param_groups)))


def kernel_for(device: torch.device, tensors: Sequence[Tensor]) -> type[Kernel] | None:
    """The kernel for tensors on a device, imported when first needed; None if there is none."""
    if device.type == "cuda":
        from longtail.optim.cuda.step import CudaKernel, available

        return CudaKernel if available(tensors) else None
    return None


def _moved(scalar: Tensor | None, device: torch.device) -> Tensor | None:
    return None if scalar is None else scalar.to(device, non_blocking=True)
