"""Which kernels step a parameter group: Triton's on CUDA, compiled C++ on the CPU, or none.

An optimizer has one `Kernels`. It owns the kernels of each parameter group, and a kernel owns what
it made ready for its next step: tables of addresses, and what must still hold for them to be used.
"""

from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from longtail.optim.past import Draw
from longtail.optim.state import Settings, Tensors, is_plain

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

    def step_together(self, optimizer: Any) -> bool:
        """Step all groups in one call; False, with nothing done, if each must have its own."""
        together = self._for_all(optimizer)
        return together is not None and together.step(optimizer, self._known(optimizer))

    def end_task_together(self, optimizer: Any) -> bool:
        """End the task of all groups in one call; False, with nothing done, if that cannot be."""
        together = self._for_all(optimizer)
        return together is not None and together.end_task(optimizer, self._known(optimizer))

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


def uses_fused(group: Group) -> bool:
    """Whether the group asks for ``fused``, or leaves it open and a GPU's kernel can step it."""
    if group["fused"] is not None or group["foreach"] is not None or group["differentiable"]:
        return bool(group["fused"])
    params = group["params"]
    if not params or not params[0].is_cuda or torch.compiler.is_compiling():
        return False
    device = params[0].device
    if not all(is_plain(p) and p.device == device and p.is_floating_point() for p in params):
        return False
    return kernel_for(device, params) is not None


def kernel_for(device: torch.device, tensors: Sequence[Tensor]) -> type[Kernel] | None:
    """The kernel for tensors on a device, imported when first needed; None if there is none."""
    if device.type == "cuda":
        from longtail.optim.cuda.step import CudaKernel, available

        return CudaKernel if available(tensors) else None
    if device.type == "cpu":
        from longtail.optim.cpu.step import CpuKernel

        return CpuKernel
    return None


def _moved(scalar: Tensor | None, device: torch.device) -> Tensor | None:
    return None if scalar is None else scalar.to(device, non_blocking=True)
