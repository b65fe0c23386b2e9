"""Where the five tasks' files are published, and how to get them."""

from __future__ import annotations

import tarfile
from contextlib import ExitStack
from pathlib import Path

from longtail.support.files import replacing
from longtail_bench.downloads import DownloadError, Meter, Remote, fetch, verify

_SQUAD = "https://rajpurkar.github.io/SQuAD-explorer/dataset/"
_WIKISQL = "https://github.com/salesforce/WikiSQL/raw/master/"
_SST = (
    "https://raw.githubusercontent.com/openai/generating-reviews-discovering-sentiment/master/data/"
)
_QASRL = "https://dada.cs.washington.edu/qasrl/data/"
_WOZ = "https://raw.githubusercontent.com/nmrksic/neural-belief-tracker/master/data/woz/"


def _remotes(place: str, sums: dict[str, str]) -> tuple[Remote, ...]:
    return tuple(Remote(name, (place + name,), sha256=found) for name, found in sums.items())


# SST's and WOZ's checksums were taken from the files; those of WikiSQL and QA-SRL are on record in
# two libraries that fetch them (ParlAI, Hugging Face datasets), SQuAD's in torchtext and others.
REMOTES: dict[str, tuple[Remote, ...]] = {
    "squad": (
        Remote(
            "train-v1.1.json",
            (f"{_SQUAD}train-v1.1.json",),
            md5="981b29407e0affa3b1b156f72073b945",
        ),
        Remote(
            "dev-v1.1.json",
            (f"{_SQUAD}dev-v1.1.json",),
            md5="3e85deb501d4e538b6bc56f786231552",
        ),
    ),
    "wikisql": _remotes(
        _WIKISQL,
        {"data.tar.bz2": "755c728ab188e364575705c8641f3fafd86fb089cb8b08e8c03f01832aae0881"},
    ),
    "sst": _remotes(
        _SST,
        {
            "train_binary_sent.csv": (
                "6003623bcb35aad3a446a265b8931b7ccab61fcc10f2e9c1fec916ff67c7be35"
            ),
            "dev_binary_sent.csv": (
                "f34c4987fea208fefc2d62a1b42c83a766cbfc7ce58c2a878ef953cf91f01729"
            ),
            "test_binary_sent.csv": (
                "519cea7ed4d22fe7ec4eccbb3d5ba6d88902a3b15ce129f476aa8364463a9fc7"
            ),
        },
    ),
    "qasrl": _remotes(
        _QASRL,
        {
            "wiki1.train.qa": "f927417e94e67b7ae17e33dd882989a5556d7ff37376f8bf5c78ece7d17a6c64",
            "wiki1.dev.qa": "caa94beaaf22304422cdc1a2fd8732b1a47401c9555a81e1f4da81e0a7557a8b",
            "wiki1.test.qa": "b43a998344fbd520955fb8f0f7b3691ace363daa8628552cf5cf5c8d84df6cca",
        },
    ),
    "woz": _remotes(
        _WOZ,
        {
            "woz_train_en.json": "7cd9e971553e5f3e80bb0c93164bf4c619c7f49f45d636a0512474cdeb074485",
            "woz_validate_en.json": (
                "ae1ea9067fd05c0179d349f140b38de1b2db587d5bfcb4f99ef0d77474ab00ad"
            ),
            "woz_test_en.json": "3673e433b21a6b0d74e9144bd059e64b29bc3e1c5dc0e18654a98ec597c0d72c",
        },
    ),
}
# Questions for training and testing in the published files above.
PUBLISHED = {
    "squad": (87599, 10570),
    "wikisql": (56355, 15878),
    "sst": (6920, 1821),
    "qasrl": (6414, 2201),
    "woz": (2536, 1646),
}


def where_to_get(task: str, folder: Path) -> str:
    """A sentence that says which files to put where, and where they are published."""
    archives = [r.name for r in REMOTES[task] if r.name.endswith(".tar.bz2")]
    if any((folder / name).exists() for name in archives):
        return f"`longtail data nlp5` unpacks the {archives[0]} that is there"
    names = ", ".join(remote.name for remote in REMOTES[task])
    return f"put {names} into {folder} (published at {REMOTES[task][0].urls[0]})"


def agrees(path: Path, remote: Remote) -> bool | None:
    """Whether a file has the published checksum; None where there is no such file."""
    if not path.exists():
        return None
    try:
        verify(path, remote)
    except DownloadError:
        return False
    return True


def fetch_task(task: str, folder: Path, quiet: bool) -> None:
    """A task's published files, into a folder."""
    try:
        # development files last: beside a training file they would pass for the missing test
        for remote in sorted(REMOTES[task], key=lambda r: "dev" in r.name or "valid" in r.name):
            path = fetch(remote, folder, progress=None if quiet else Meter())
            if path.name.endswith(".tar.bz2"):
                unpack(path)
    except OSError as error:
        raise ValueError(f"{error}. By hand: {where_to_get(task, folder)}") from None


def unpack(path: Path) -> None:
    """The JSON lines of WikiSQL's archive, beside it; under their names only once all are there."""
    try:
        with ExitStack() as files, tarfile.open(path, "r:bz2") as archive:
            for member in archive.getmembers():
                wanted = member.name.endswith(".jsonl") and member.isfile()
                source = archive.extractfile(member) if wanted else None
                if source is not None:
                    file = files.enter_context(replacing(path.parent / Path(member.name).name))
                    file.write(source.read())
    except (tarfile.TarError, EOFError, ValueError, OverflowError) as error:
        raise ValueError(f"{path} cannot be unpacked ({error}): delete it and try again") from None
