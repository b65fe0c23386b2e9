"""Compiles the C++ source beside this file, once for a machine, and loads it.

The library lands in a folder of its own in ``$LONGTAIL_CACHE``, or in the platform's cache folder,
which only its owner may enter: it is code. Its name is made of
everything that shapes it: source, flags, compiler and processor (``-march=native`` code must not
reach another one through a shared home folder). It is written under a temporary name and moved,
so that processes which start together may all compile and none reads half a file. A process that
was killed leaves its temporary file behind; the next one that compiles removes it, a day later.
"""

import ctypes
import functools
import hashlib
import os
import platform
import shutil
import stat
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator
from pathlib import Path

_POSIX = hasattr(os, "getuid")  # elsewhere files have no such owner and mode
_SOURCE = Path(__file__).with_name("step.cpp")
# Without contraction a product and a sum are rounded one by one on every processor, so that all
# variants give the same bits. Nobody looks at floating-point exceptions, and comparisons that may
# raise them would keep loops scalar.
_EXACT = ("-fno-math-errno", "-ffp-contract=off", "-fno-trapping-math")
_BASE = ("-std=c++17", "-O3", *_EXACT, "-shared", "-fPIC")
_DRAFT = ("tmp", ".so")  # how the name of a temporary file begins and ends
_STALE = 24 * 3600  # seconds, of which a compilation is given 120
# Not every compiler knows these; the best that works is taken.
_EXTRAS = (("-march=native", "-fopenmp"), ("-fopenmp",), ("-march=native",), ())


@functools.cache
def library() -> ctypes.CDLL | None:
    """The compiled step, or None, with one warning, where no compiler can make it."""
    for compiler in _compilers():
        for extra in _EXTRAS:
            try:
                lib = load(compiler, extra)
            except (OSError, subprocess.SubprocessError):
                continue
            _used.append(" ".join([Path(compiler).name, *_BASE[:-2], *extra]))
            return lib
    warnings.warn(
        "fused=True on the CPU needs a C++ compiler (tried $CXX, c++, g++, clang++); "
        "using the for-loop instead",
        RuntimeWarning,
        stacklevel=2,
    )
    return None


_used: list[str] = []  # the variant that this process has loaded, if any


def variant() -> str | None:
    """Compiler and flags of the step that this process has used; None where it used none."""
    return _used[-1] if _used else None


def load(compiler: str, extra: tuple[str, ...]) -> ctypes.CDLL:
    """One variant of the step, compiled where it is not there yet.

    Raises:
        OSError: it cannot be loaded.
        subprocess.SubprocessError: this compiler does not know these flags.
    """
    return _declare(ctypes.CDLL(str(_compiled(compiler, (*_BASE, *extra)))))


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
    if not _is_whole(path):
        prefix, suffix = _DRAFT
        handle, draft = tempfile.mkstemp(suffix, prefix, folder)
        os.close(handle)
        try:
            command = [compiler, *flags, str(_SOURCE), "-o", draft]
            subprocess.run(command, capture_output=True, check=True, timeout=120)
            os.chmod(draft, 0o600)
            _sign(Path(draft))
            with open(draft, "r+b") as file:  # Windows syncs what can be written to
                os.fsync(file.fileno())
            os.replace(draft, path)
        finally:
            Path(draft).unlink(missing_ok=True)
        _remove_stale(folder)
    return path


def _remove_stale(folder: Path) -> None:
    """Remove what compilations that were killed have left, and nothing that one may still write."""
    prefix, suffix = _DRAFT
    for path in folder.glob(f"{prefix}*{suffix}"):
        try:
            found = path.lstat()
            if stat.S_ISREG(found.st_mode) and time.time() - found.st_mtime > _STALE:
                path.unlink()
        except OSError:  # another process was faster, or it is not ours to remove
            continue


def _sign(path: Path) -> None:
    """Add the checksum of a library to its end, which no loader reads."""
    with open(path, "rb") as file:
        digest = hashlib.file_digest(file, "sha256").digest()
    with open(path, "ab") as file:
        file.write(digest)


def _is_whole(path: Path) -> bool:
    """Whether this is a file of this user's alone, as it was compiled: else it is made anew.

    A library is code. One that somebody else could have put there must not run, and one that was
    cut off would end the process (SIGBUS) when it is used.
    """
    try:
        with open(path, "rb", opener=_not_through_a_link) as file:
            found = os.fstat(file.fileno())
            if _POSIX and (found.st_uid != os.getuid() or found.st_mode & 0o022):
                return False
            content = file.read()
    except OSError:
        return False
    return hashlib.sha256(content[:-32]).digest() == content[-32:]


def _not_through_a_link(path: str, flags: int) -> int:
    return os.open(path, flags | getattr(os, "O_NOFOLLOW", 0))


def cache_folder() -> Path:
    """``kernels`` in ``$LONGTAIL_CACHE`` or the platform's cache, readable by its owner alone.

    One for this process where that cannot be written to, or is anybody else's too.
    """
    if named := os.environ.get("LONGTAIL_CACHE"):
        folder = Path(named)
    elif sys.platform == "darwin":
        folder = Path("~/Library/Caches/longtail")
    elif sys.platform == "win32":
        folder = Path(os.environ.get("LOCALAPPDATA", "~")) / "longtail"
    else:
        folder = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "longtail"
    try:
        folder = (
            folder.expanduser().absolute() / "kernels"
        )  # a loader looks for a bare name elsewhere
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        if not _is_private(folder):
            folder = None
    except (OSError, RuntimeError):  # RuntimeError: a container's user may have no home
        folder = None
    return folder or _own_folder()


@functools.cache
def _own_folder() -> Path:
    return Path(tempfile.mkdtemp(prefix="longtail-"))


def _is_private(folder: Path) -> bool:
    """Whether only this user can write to a folder, which is made so where it is the user's."""
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or (_POSIX and found.st_uid != os.getuid()):
        return False
    if _POSIX and found.st_mode & 0o077:
        folder.chmod(0o700)
    return os.access(folder, os.W_OK)


def _processor() -> bytes:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
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
        end_task.argtypes = (ctypes.c_int64, pointer, number, *[pointer] * 4, number)
        end_task.restype = None
    return lib
