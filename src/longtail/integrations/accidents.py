"""What happens by accident when a framework makes, saves and restores optimizers by itself."""

import os
import warnings
from typing import Any

from longtail.memory.document import memory_path, remembered
from longtail.optim.wrappers import required


def warn_of_fresh(optimizer: Any, folder: str | os.PathLike[str]) -> None:
    """Warn of an optimizer that knows no task and will not be told, though a memory lies there."""
    inner = required(optimizer, "ContinualCallback")
    own = max((int(group["tasks_seen"]) for group in inner.param_groups), default=0)
    tasks, _ = remembered(folder)
    if tasks and not own:
        warnings.warn(
            f"The checkpoint's optimizer has seen no task, and {memory_path(folder)} remembers "
            f"{tasks}: a checkpoint is taken as it is, and that memory is replaced at the end",
            stacklevel=3,
        )
