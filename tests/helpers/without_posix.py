"""Runs longtail commands as where there is no POSIX: `python without_posix.py list --and run toy`.

What Windows lacks is taken away before longtail is imported, in this process and in its workers.
Third-party packages have ways of their own there, so those that look for one of these modules at
all are imported first.
"""

from __future__ import annotations

import os
import signal
import sys
import warnings

MODULES = ("fcntl", "resource", "pwd", "grp", "termios", "tty", "pty", "syslog")
OF_OS = (
    "fork", "forkpty", "register_at_fork", "setpgrp", "setpgid", "killpg", "getuid", "geteuid",
    "getpgid", "O_NOFOLLOW", "O_DIRECTORY", "O_CLOEXEC", "sched_getaffinity", "sched_setaffinity",
    "sysconf", "sysconf_names", "getloadavg", "uname", "fchmod", "chown", "link", "symlink",
)  # fmt: skip
OF_SIGNAL = ("SIGKILL", "SIGHUP", "SIGALRM", "SIGUSR1", "SIGPIPE", "pthread_sigmask", "alarm")


def hide() -> None:
    """Take away what Windows does not have."""
    # The pool of processes itself is Python's, which has another on Windows.
    import multiprocessing.popen_spawn_posix
    import multiprocessing.resource_tracker
    import multiprocessing.synchronize
    import subprocess  # noqa: F401

    import platformdirs  # noqa: F401
    import rich.console  # noqa: F401
    import torch  # noqa: F401

    multiprocessing.resource_tracker._HAVE_SIGMASK = False  # not there on Windows at all
    for name in [n for n in sys.modules if n.partition(".")[0] == "filelock"]:
        del sys.modules[name]  # it looks for fcntl once
    for name in MODULES:
        sys.modules[name] = None  # pyright: ignore[reportArgumentType]
    for name in OF_OS:
        if hasattr(os, name):
            delattr(os, name)
    for name in OF_SIGNAL:
        if hasattr(signal, name):
            delattr(signal, name)
    warnings.filterwarnings("ignore", "only soft file lock")


if __name__ in ("__main__", "__mp_main__"):  # a worker imports this file by the second name
    hide()

if __name__ == "__main__":
    from longtail.cli import main

    commands = " ".join(sys.argv[1:]).split(" --and ")
    raise SystemExit(max(main(command.split()) for command in commands))
