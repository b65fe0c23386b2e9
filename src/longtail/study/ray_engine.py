"""The same jobs on a Ray cluster: `longtail study FILE --engine ray --address auto`.

Ray places the jobs, restarts one whose worker died, and the run folder's snapshot lets it go on
from where it was. Two ways to keep the files:

- shared: the study's folder is on storage that all nodes see under the same path;
- fetch: workers use a local folder and send what they have, snapshots included, to the machine that
  started the study, now and then and at the end. A retry, wherever it runs, begins with the copy.
"""

from __future__ import annotations

import dataclasses
import io
import logging
import os
import shutil
import socket
import tarfile
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from longtail.runs.files import RunFiles, StackFiles, StudyFiles, remove_snapshot, snapshots_in
from longtail.study.display import Overview
from longtail.study.jobs import Job, JobOptions, train_job
from longtail.support.files import LOCK, is_draft, write_atomic
from longtail.support.mark import refuse_strangers

RETRIES = 3  # of a job whose worker died; its own errors are final
SEND_SECONDS = 10.0


class Post:
    """An actor: events from workers to the driver, and copies of folders in both directions."""

    def __init__(self, out: str) -> None:
        self.out = Path(out)
        self.events: list[tuple[str, str, dict[str, Any]]] = []

    def event(self, kind: str, identity: str, content: dict[str, Any]) -> None:
        self.events.append((kind, identity, content))

    def take(self) -> list[tuple[str, str, dict[str, Any]]]:
        taken, self.events = self.events, []
        return taken

    def store(self, folder: str, archive: bytes) -> None:
        stacked = folder.startswith(f"{StudyFiles.STACKS}/")
        try:
            refuse_strangers(self.out / folder, "stack" if stacked else "run")
        except ValueError:  # the job has failed with this sentence, and nothing new has come
            return
        unpack(archive, self.out / folder)

    def fetch(self, folder: str) -> bytes:
        return pack(self.out / folder)


def pack(folder: Path) -> bytes:
    """A folder as a tar archive; the lock stays with the process that holds it."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for path in sorted(folder.rglob("*")) if folder.is_dir() else []:
            # A file may be renamed while we look: what is there a moment later is a newer one.
            if path.name != LOCK and not is_draft(path.name) and path.is_file():
                try:
                    archive.add(path, arcname=str(path.relative_to(folder)), recursive=False)
                except FileNotFoundError:
                    continue
    return out.getvalue()


def unpack(archive: bytes, folder: Path) -> None:
    """Replaces the files of a run or a stack by those of an archive, through no link."""
    arrived = set()
    folder.mkdir(parents=True, exist_ok=True)
    with tarfile.open(fileobj=io.BytesIO(archive)) as content:
        for member in content.getmembers():
            path = folder / member.name
            inside = folder.resolve() / Path(member.name).parent
            if Path(member.name).is_absolute() or path.parent.resolve() != inside:
                raise ValueError(f"{path} leads out of {folder}, by its name or through a link")
            source = content.extractfile(member) if member.isfile() else None
            if source is not None:
                path.parent.mkdir(parents=True, exist_ok=True)
                write_atomic(path, source.read())
                arrived.add(path)
    for path in _ours(folder) - arrived:  # what was removed there
        remove_snapshot(path)


def _ours(folder: Path) -> set[Path]:
    """The files that training may have written to a folder."""
    paths = set(snapshots_in(folder / RunFiles.SNAPSHOTS))
    for files in (RunFiles(folder), StackFiles(folder)):
        paths.update(folder / name for name in files.names())
    return paths


def train_job_remotely(
    job: Job, out: str, options: JobOptions, post: Any, storage: str, send_seconds: float
) -> None:
    """Trains a job on a worker, with its folder on shared storage or fetched and sent back."""
    import ray

    def send(kind: str, content: dict[str, Any]) -> None:
        post.event.remote(kind, job.id, content)

    if storage == "shared":
        train_job(job, Path(out), options, send)
        return
    local = Path(tempfile.mkdtemp(prefix="longtail-"))
    folder = local / job.folder
    unpack(ray.get(post.fetch.remote(job.folder)), folder)
    stop = threading.Event()

    def keep_sending() -> None:
        last = None
        while not stop.wait(send_seconds):
            snapshots = sorted(p.name for p in RunFiles(folder).snapshots.glob("*.pt"))
            if snapshots != last:
                ray.get(post.store.remote(job.folder, pack(folder)))
                last = snapshots

    sender = threading.Thread(target=keep_sending, daemon=True)
    sender.start()
    held: list[tuple[str, dict[str, Any]]] = []

    def send_after_files(kind: str, content: dict[str, Any]) -> None:
        # The driver takes "finished" as a sign that the files are there.
        (held.append((kind, content)) if kind in ("finished", "failed") else send(kind, content))

    try:
        train_job(job, local, dataclasses.replace(options, log_apart=True), send_after_files)
    finally:
        stop.set()
        sender.join()
        ray.get(post.store.remote(job.folder, pack(folder)))
        for kind, content in held:
            send(kind, content)
        shutil.rmtree(local, ignore_errors=True)


def _connect(address: str | None) -> None:
    """Joins a cluster; an address where none answers is refused, for which Ray takes minutes."""
    import ray

    host, _, port = (address or "").rpartition(":")
    try:
        if port.isdigit() and "/" not in host:  # not auto, not ray://host:port
            socket.create_connection((host, int(port)), timeout=10).close()
        ray.init(address=address or "local", log_to_driver=False, logging_level=logging.WARNING)
    except OSError as error:  # Ray's ConnectionError is one
        why = str(error).partition("\n")[0]
        raise ValueError(f"--address {address}: no Ray cluster answers ({why})") from None


def train_jobs_on_ray(
    jobs: Sequence[Job],
    out: Path,
    options: JobOptions,
    overview: Overview,
    resources: dict[str, float],
    *,
    address: str | None = None,
    storage: str = "shared",
) -> None:
    """Trains jobs as Ray tasks. Without an address a cluster is started on this machine."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    started = not ray.is_initialized()
    if started:
        _connect(address)
    cpus, gpus = float(resources.get("cpus", 1)), float(resources.get("gpus", 0))
    options = dataclasses.replace(options, threads=max(1, int(cpus)))
    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    actor: Any = ray.remote(Post)
    post = actor.options(num_cpus=0, scheduling_strategy=here).remote(str(out.resolve()))
    remote: Any = ray.remote(train_job_remotely)
    task = remote.options(num_cpus=cpus, num_gpus=gpus, max_retries=RETRIES, retry_exceptions=False)
    given = str(out.resolve()), options, post, storage, SEND_SECONDS
    waiting = {task.remote(job, *given): job for job in jobs}
    by_id = {job.id: job for job in jobs}

    def relay() -> None:
        for kind, identity, content in ray.get(post.take.remote()):
            overview.event(kind, by_id[identity], content)

    try:
        while waiting:
            done, _ = ray.wait(list(waiting), timeout=0.5)
            relay()
            for reference in done:
                _collect(reference, waiting.pop(reference), out, overview)
    except KeyboardInterrupt:
        _cancel(list(waiting))
        relay()
        for job in waiting.values():
            if overview.states[job.id].status == "running":
                overview.event("stopped", job, {})
        raise
    finally:
        if started:
            ray.shutdown()


def _collect(reference: Any, job: Job, out: Path, overview: Overview) -> None:
    import ray
    from ray.exceptions import RayError

    try:
        ray.get(reference)
    except RayError as error:  # its worker died more often than it is retried
        text = f"its worker died {RETRIES + 1} times: {type(error).__name__}"
        job.files(out).record_failure(text, str(error))
        overview.event("failed", job, {"error": text})


def _cancel(references: list[Any], seconds: float = 60.0) -> None:
    """Asks running tasks to stop, which lets them save, and waits for them."""
    import ray

    for reference in references:
        ray.cancel(reference, force=False, recursive=False)
    end = time.monotonic() + seconds
    while references and time.monotonic() < end:
        _, references = ray.wait(references, num_returns=len(references), timeout=1.0)
