"""Avalanche: the boundary after every experience, and the memory, as a plugin.

Avalanche clears an optimizer's state before a strategy's first experience, and that of a tensor
that has grown (an incremental classifier), without a word. The plugin saves the memory after each
experience and loads it before the next, by name, so that a grown tensor keeps its rows.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import weakref
from typing import Any

import torch
from avalanche.training.plugins import SupervisedPlugin

from longtail.memory import load_memory, save_memory
from longtail.memory.document import memory_path
from longtail.optim import end_task


class ContinualPlugin(SupervisedPlugin):
    """One task for each experience.

    Args:
        memory: the folder (or ``.safetensors`` file) of the memory, which also outlives the
            process; by default a temporary one, for this strategy alone.
        dtype: of the file, see `longtail.save_memory`.
        grow: what rows of a grown tensor start with, see `longtail.load_memory`.
    """

    def __init__(
        self,
        memory: str | os.PathLike[str] | None = None,
        *,
        dtype: torch.dtype | str | None = None,
        grow: str = "mean",
    ) -> None:
        super().__init__()
        self.memory = tempfile.mkdtemp() if memory is None else memory
        if memory is None:
            weakref.finalize(self, shutil.rmtree, self.memory, ignore_errors=True)
        self.dtype, self.grow = dtype, grow
        self._quiet = memory is None

    def before_training_exp(self, strategy: Any, *args: Any, **kwargs: Any) -> None:
        if memory_path(self.memory).exists():
            load_memory(
                strategy.optimizer,
                self.memory,
                strategy.model,
                grow=self.grow,
                quiet=self._quiet,
            )
        self._quiet = True  # once, for what an earlier process left

    def after_training_exp(self, strategy: Any, *args: Any, **kwargs: Any) -> None:
        end_task(strategy.optimizer)
        save_memory(strategy.optimizer, self.memory, strategy.model, dtype=self.dtype)
