"""Lets torchvision be imported beside a torch that its compiled operators do not fit.

The published wheels of torchvision are built for CUDA and do not load into a torch without it; the
package then fails while it registers gradients for operators that are not there. Avalanche uses
none of them, so declaring their names is enough to run it for real.
"""

import re
import sys
from typing import Any

import torch

_declared: list[Any] = []


def declare_missing() -> None:
    """Declare operators until ``import torchvision`` goes through; does nothing where it fits."""
    for _ in range(20):
        try:
            import torchvision  # noqa: F401

            return
        except RuntimeError as error:
            found = re.search(r"operator torchvision::(\w+) does not exist", str(error))
            if found is None:
                raise
            library = torch.library.Library("torchvision", "FRAGMENT")
            library.define(f"{found[1]}(Tensor x) -> Tensor")
            _declared.append(library)  # it lives as long as the operator
            for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
                del sys.modules[name]
    raise RuntimeError("torchvision lacks more operators than it has")
