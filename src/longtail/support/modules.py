"""Import a module that a user named, which may lie in the current folder.

The current folder is nobody's to trust: a `numpy.py` there would be executed by every command if
the folder stood first on the path. It stands last, and only once a user's module was asked for.
"""

import importlib
import importlib.util
import os
import sys
from types import ModuleType
from typing import Any


def is_module_name(path: str) -> bool:
    """Whether this could be the dotted path of a module.

    >>> is_module_name("my_package.claims"), is_module_name(".claims"), is_module_name("")
    (True, False, False)
    """
    return all(part.isidentifier() for part in path.split("."))


def import_named(path: str) -> ModuleType:
    """The module of this dotted path; `ImportError` where there is none, or it is no name."""
    if not is_module_name(path):
        raise ImportError(f"{path!r} is not the dotted path of a module")
    _see_current_folder()
    return importlib.import_module(path)


def import_object(path: str) -> Any:
    """What is called `name` in the module of `module:name`; `ImportError` where there is nothing.

    >>> import_object("math:pi")
    3.141592653589793
    """
    module, _, name = path.partition(":")
    found = import_named(module)
    try:
        return getattr(found, name)
    except AttributeError:
        raise ImportError(f"module {module!r} has no {name!r}") from None


def exists(name: str) -> bool:
    """Whether there is a module of this name, without a dot; it is not imported."""
    _see_current_folder()
    return name.isidentifier() and importlib.util.find_spec(name) is not None


def _see_current_folder() -> None:
    if "" not in sys.path and os.getcwd() not in sys.path:
        sys.path.append("")
