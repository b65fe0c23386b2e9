"""Compiles the C++ source beside this file, once for a machine, and loads it.

The library lands in ``$LONGTAIL_CACHE``, or the platform's cache folder, under a name made of
everything that shapes it: source, flags, compiler and processor (``-march=native`` code must not
reach another one through a shared home folder). It is written under a temporary name and moved,
so that processes which start together may all compile and none reads half a file.
"""

import ctypes
import functools
import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path

_SOURCE = Path(__file__).with_name("step.cpp")
_BASE = ("-std=c++17", "-O3", "-fno-math-errno", "-shared", "-fPIC")
# Not every compiler knows these; the best that works is taken.
_EXTRAS = (("-march=native", "-fopenmp"), ("-fopenmp",), ("-march=native",), ())


@functools.cache
def library() -> ctypes.CDLL | None:
    """The compiled step, or None, with one warning, where no compiler can make it."""
    for compiler in _compilers():
        for extra in _EXTRAS:
            try:
                path = _compiled(compiler, (*_BASE, *extra))
                return _declare(ctypes.CDLL(str(path)))
            except (OSError, subprocess.SubprocessError):
                continue
    warnings.warn(
        "fused=True on the CPU needs a C++ compiler (tried $CXX, c++, g++, clang++); "
        "using the for-loop instead",
        RuntimeWarning,
        stacklevel=2,
    )
    return None


def _compilers() -> Iterator[str]:
    for name in (os.environ.get("CXX"), "c++", "g++", "clang++"):
        path = shutil.which(name) if name else None
        if path is not None:
            yield path


def _compiled(compiler: str, flags: tuple[str, ...]) -> Path:
    source = _SOURCE.read_bytes()
    version = subprocess.run([compiler, "--version"], capture_output=True, check=True).stdout
    key = hashlib.sha256(b"\0".join([source, version, _processor(), " ".join(flags).encode()]))
    folder = cache_folder()
    path = folder / f"fused_cpu-{key.hexdigest()[:24]}.so"
    if not path.exists():
        handle, draft = tempfile.mkstemp(suffix=".so", dir=folder)
        os.close(handle)
        try:
            command = [compiler, *flags, str(_SOURCE), "-o", draft]
            subprocess.run(command, capture_output=True, check=True, timeout=120)
            os.replace(draft, path)
        finally:
            Path(draft).unlink(missing_ok=True)
    return path


def cache_folder() -> Path:
    """``$LONGTAIL_CACHE`` or the platform's; one for this process if that is not writable."""
    if named := os.environ.get("LONGTAIL_CACHE"):
        folder = Path(named)
    elif sys.platform == "darwin":
        folder = Path("~/Library/Caches/longtail")
    elif sys.platform == "win32":
        folder = Path(os.environ.get("LOCALAPPDATA", "~")) / "longtail"
    else:
        folder = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "longtail"
    try:
        folder = folder.expanduser()
        folder.mkdir(parents=True, exist_ok=True)
    except (OSError, RuntimeError):  # RuntimeError: a container's user may have no home
        folder = None
    if folder is None or not os.access(folder, os.W_OK):
        return Path(tempfile.mkdtemp(prefix="longtail-"))
    return folder


def _processor() -> bytes:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        shown = [x for x in lines if x.startswith(("model name", "flags", "Features", "CPU part"))]
        return "\n".join(sorted(set(shown))).encode()
    except OSError:
        return f"{platform.machine()} {platform.processor()}".encode()


def _declare(lib: ctypes.CDLL) -> ctypes.CDLL:
    pointer, number = ctypes.c_void_p, ctypes.c_int
    for dtype in ("float", "double"):
        step = getattr(lib, f"longtail_step_{dtype}")
        step.argtypes = (ctypes.c_int64, pointer, number, *[pointer] * 5, number)
        step.restype = None
        end_task = getattr(lib, f"longtail_end_task_{dtype}")
        end_task.argtypes = (ctypes.c_int64, pointer, pointer, number, number)
        end_task.restype = number
    return lib
