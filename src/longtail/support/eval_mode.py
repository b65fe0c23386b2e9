"""Evaluation mode for the length of a `with` block."""

from torch import nn

__all__ = ["evaluation_mode"]


class evaluation_mode:  # noqa: N801 (used like a function)
    """Evaluation mode inside; afterwards each module is back in the mode it had.

    Goes past `Module.eval` and `Module.modules`, which take longer than a small model's pass.
    """

    def __init__(self, model: nn.Module) -> None:
        self.training: list[nn.Module] = []
        self._collect(model)

    def _collect(self, module: nn.Module) -> None:
        if module.training:
            self.training.append(module)
        for child in module._modules.values():
            if child is not None:
                self._collect(child)

    def __enter__(self) -> None:
        for module in self.training:
            module.__dict__["training"] = False

    def __exit__(self, *_: object) -> None:
        for module in self.training:
            module.__dict__["training"] = True
