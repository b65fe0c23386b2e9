"""Which finished runs of a study are used again, which are computed anew, and why."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from longtail.names import __version__
from longtail.runs.files import RunFiles, StackFiles, StudyFiles
from longtail.runs.fingerprint import change, fingerprint
from longtail.study.expand import Planned
from longtail.support.files import parse_json

Files = RunFiles | StackFiles


@dataclass
class Survey:
    """What is finished of a study, by reasons; each reason with its runs.

    Attributes:
        reused: wanted runs that need not be computed again.
        anew: wanted runs that are finished, or begun, and are computed again from the first task.
        outside: runs of the study that are not wanted now and would be computed again.
        folders: where the runs of ``reused`` and ``anew`` are.
        wanted: ids of all wanted runs.
        fresh: whether all of them were asked for anew.
    """

    reused: dict[str, list[Planned]] = field(default_factory=dict)
    anew: dict[str, list[Planned]] = field(default_factory=dict)
    outside: dict[str, list[Planned]] = field(default_factory=dict)
    folders: dict[str, Files] = field(default_factory=dict)
    wanted: frozenset[str] = frozenset()
    fresh: bool = False

    @property
    def done(self) -> set[str]:
        return {run.id for runs in self.reused.values() for run in runs}

    def sentences(self) -> Iterator[tuple[str, list[Planned], str]]:
        """(reused, anew or outside, runs, a sentence) for every reason."""
        for why, runs in self.reused.items():
            yield "reused", runs, f"{_described(runs, 'finished ')} used again: {why}"
        for why, runs in self.anew.items():
            yield "anew", runs, f"{_described(runs)} computed anew: {why}"
        for why, runs in self.outside.items():
            yield "outside", runs, f"{_described(runs, 'finished ')} not asked for: {why}"

    def refuse_anew(self) -> None:
        """`ValueError` where a finished run would be computed again, for --keep."""
        for why, runs in self.anew.items():
            raise ValueError(
                f"{_described(runs)} no longer what would be computed: {why}; --keep refuses to "
                "compute them anew: put the file back, or leave out --keep"
            )

    def make_room(self, files: StudyFiles, stacks: Mapping[str, Sequence[str]]) -> None:
        """Remove what is computed anew, all of it before the first: no table mixes old and new.

        Args:
            files: of the study.
            stacks: that were begun, with the ids of their runs.

        Raises:
            ValueError: it shares a stack with runs that are still good.
        """
        folders = [self.folders[run.id] for runs in self.anew.values() for run in runs]
        if self.fresh:  # what was begun, too
            begun = [files.stack(i) for i, ids in stacks.items() if self.wanted & {*ids}]
            for stack in (f for f in (*folders, *begun) if isinstance(f, StackFiles)):
                if stack.settings.exists():
                    _require_whole(stack, self.wanted)
            folders += [*begun, *map(files.run, self.wanted)]
        unique = {f.folder: f for f in folders}.values()
        for folder in unique:
            folder.refuse_strangers()  # all of them, before anything is removed
        for folder in unique:
            folder.clear()


def _require_whole(files: StackFiles, wanted: frozenset[str]) -> None:
    others = set(files.read_settings()) - wanted
    if others:
        raise ValueError(
            f"--fresh: {files.folder} has trained the runs asked for together with {len(others)} "
            "more, which would be lost; ask for all of them, or choose another --out"
        )


def survey(
    wanted: Sequence[Planned],
    listed: Sequence[Planned],
    finished: Mapping[str, Files],
    begun: Mapping[str, Files],
    *,
    fresh: bool = False,
) -> Survey:
    """What becomes of the runs that are there.

    Args:
        wanted: the runs asked for.
        listed: all runs that the study's tables show.
        finished: where runs have been computed, by id.
        begun: where runs have not come to their end.
        fresh: compute all that is wanted anew.
    """
    found = Survey(wanted=frozenset(run.id for run in wanted), fresh=fresh)
    changes: dict[tuple[Any, ...], str | None] = {}
    for run in {run.id: run for run in (*wanted, *listed)}.values():
        asked = run.id in found.wanted
        files = finished.get(run.id) or (begun.get(run.id) if asked else None)
        if files is None:
            continue
        made_of = fingerprint(run.config)
        key = files.folder, *made_of.items()  # the runs of a stack share a folder, maybe not data
        if key not in changes:
            changes[key] = "--fresh was given" if fresh and asked else _changed(made_of, files)
        why = changes[key]
        if asked:
            found.folders[run.id] = files
        if why is None and asked and run.id in finished:
            found.reused.setdefault(_reason(made_of, files), []).append(run)
        elif why is not None:
            (found.anew if asked else found.outside).setdefault(why, []).append(run)
    return found


def _changed(made_of: Mapping[str, str], files: Files) -> str | None:
    """Why a finished run is not what would be computed now; None where it is."""
    if not made_of:
        return None
    try:
        return change(files.read_fingerprint(), made_of)
    except (OSError, ValueError):  # training says what is wrong with the folder
        return None


def _reason(made_of: Mapping[str, str], files: Files) -> str:
    """Why a finished run is as good as one computed now."""
    text = "the same settings, code and data" if made_of else "the same settings"
    try:
        version = parse_json(files.timing, dict).get("versions", {}).get("longtail", __version__)
    except (OSError, ValueError, AttributeError):
        return text
    return text if version == __version__ else f"{text}, by longtail {version}"


def begun_runs(
    files: StudyFiles, wanted: Sequence[Planned], stacks: Mapping[str, Sequence[str]]
) -> dict[str, Files]:
    """Where wanted runs have been begun, alone or in a stack, by id."""
    found: dict[str, Files] = {}
    for identity, members in stacks.items():
        stack = files.stack(identity)
        if stack.begun() and not stack.result.exists():
            found |= dict.fromkeys(members, stack)
    alone = {run.id: files.run(run.id) for run in wanted}
    return found | {i: f for i, f in alone.items() if f.begun() and not f.result.exists()}


def _described(runs: Sequence[Planned], which_are: str = "") -> str:
    """`45 finished runs (finetune, ewc; seeds 0 to 4) are`."""
    methods = ", ".join(dict.fromkeys(str(run.labels["method"]) for run in runs))
    seeds = sorted({run.config.seed for run in runs})
    which = f"seed {seeds[0]}" if len(seeds) == 1 else f"seeds {seeds[0]} to {seeds[-1]}"
    count = f"{len(runs)} {which_are}runs" if len(runs) > 1 else f"1 {which_are}run"
    return f"{count} ({methods}; {which}) {'are' if len(runs) > 1 else 'is'}"
