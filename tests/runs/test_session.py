from __future__ import annotations

import json
import math
import os
import random
import re
import shutil
import signal
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from longtail.methods import METHODS, Finetune
from longtail.runs.build import build_run, build_stack
from longtail.runs.config import RunConfig, resolve
from longtail.runs.files import RunFiles
from longtail.runs.integrity import damage
from longtail.runs.progress import Reporter
from longtail.runs.session import RunOptions, train_run, train_stack
from longtail.runs.snapshot import Snapshots
from longtail.support.mark import Mark, write_mark
from longtail.support.signals import Stopped

SMALL = ["data.tasks=8", "data.zero_shot=1", "data.features=6", "data.hidden=8", "data.cap=30"]
SMALL += ["train.epochs=2", "train.evaluate_every=3", "train.batch_size=8", "train.lr=0.003"]
QUIET = RunOptions(quiet=True)
RESULTS = ("scores.jsonl", "summary.json", "model.safetensors")


class Heard(Reporter):
    def __init__(self) -> None:
        self.events: list[tuple] = []

    def start(self, title, tasks, resumed):
        self.events.append(("start", tasks, resumed))

    def evaluation(self, after, rp):
        self.events.append(("evaluation", after, rp))

    def warn(self, text):
        self.events.append(("warn", text))

    def finish(self, summary, out):
        self.events.append(("finish", summary, out))

    def named(self, name: str) -> list[tuple]:
        return [event for event in self.events if event[0] == name]


def small(*more: str) -> RunConfig:
    return resolve("toy", sets=[*SMALL, *more])


def content(folder: Path) -> dict[str, bytes]:
    return {name: (folder / name).read_bytes() for name in RESULTS}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """What a run leaves that nobody has disturbed."""
    folder = tmp_path_factory.mktemp("whole")
    train_run(small(), folder, QUIET)
    return content(folder)


def stop_after(steps: int):
    """An `on_step` that asks this very process to stop."""
    count = 0

    def on_step(run) -> None:
        nonlocal count
        count += 1
        if count == steps:
            os.kill(os.getpid(), signal.SIGTERM)

    return on_step


def test_folder_holds_what_it_should(tmp_path):
    heard = Heard()
    config = small("method=reservoir")
    summary = train_run(config, tmp_path / "a", reporter=heard)
    out = tmp_path / "a"
    assert json.loads((out / "summary.json").read_text()) == summary
    assert {"RP", "LP", "BWT", "FGT", "breakdown", "tasks", "policy", "score"} <= set(summary)
    assert summary["moments"] == config.as_dict()["moments"]
    assert summary["policy"] == "continual"
    assert resolve(file=out / "config.toml") == config
    tasks = json.loads((out / "tasks.json").read_text())
    assert len(tasks["names"]) == len(tasks["train_sizes"]) == len(tasks["test_sizes"]) == 8

    lines = [json.loads(line) for line in (out / "scores.jsonl").read_text().splitlines()]
    full = [line for line in lines if len(line["scores"]) == line["after"] + 1]
    assert [line["after"] for line in full if line["after"]] == [2, 5, 7]
    assert {line["after"] for line in lines if str(line["after"]) in line["scores"]} == set(
        range(8)
    )
    last = np.array([lines[-1]["scores"][str(i)] for i in range(8)])
    assert math.isclose(np.average(last, weights=tasks["test_sizes"]), summary["RP"])

    weights = load_file(out / "model.safetensors")
    run = build_run(config)
    assert {k: v.shape for k, v in weights.items()} == {
        k: v.shape for k, v in run.model.state_dict().items()
    }
    timing = json.loads((out / "timing.json").read_text())
    assert timing["seconds"] > 0
    assert {"started", "finished", "versions", "hardware"} <= set(timing)
    assert len(list((out / "snapshot").iterdir())) == 1
    assert (out / ".lock").read_bytes() == b""
    assert heard.named("start") == [("start", 8, None)]
    assert [event[1] for event in heard.named("evaluation")][-1] == 7


def test_no_dates_outside_timing(tmp_path):
    train_run(small(), tmp_path, QUIET)
    year = time.strftime("%Y-")
    for path in tmp_path.iterdir():
        if path.is_file() and path.name != "timing.json":
            assert year.encode() not in path.read_bytes(), path.name


def test_same_settings_give_the_same_bytes_and_others_do_not(tmp_path):
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        torch.rand(3)  # the state of the process must not matter
        train_run(small(f"seed={seed}"), tmp_path / name, QUIET)
    assert content(tmp_path / "a") == content(tmp_path / "b")
    assert (
        content(tmp_path / "a")["model.safetensors"] != content(tmp_path / "c")["model.safetensors"]
    )


def test_finished_run_is_left_alone(tmp_path):
    first = train_run(small(), tmp_path, QUIET)
    before = {p: p.stat().st_mtime_ns for p in tmp_path.rglob("*") if p.name != ".lock"}
    heard = Heard()
    assert train_run(small(), tmp_path, reporter=heard) == first
    assert {p: p.stat().st_mtime_ns for p in tmp_path.rglob("*") if p.name != ".lock"} == before
    assert heard.named("start") == []
    assert heard.named("finish")[0][1] == first


@pytest.mark.parametrize("kept", ["everything", "the results alone"])
def test_folder_of_another_configuration_is_refused(tmp_path, kept):
    train_run(small(), tmp_path, QUIET)
    if kept == "the results alone":
        (tmp_path / "tasks.json").unlink()
        shutil.rmtree(tmp_path / "snapshot")
    before = content(tmp_path) | {"settings": (tmp_path / "config.toml").read_bytes()}
    with pytest.raises(ValueError, match=r"train\.lr is 0\.003 there and 0\.1 here"):
        train_run(small("train.lr=0.1", "train.eps=0.1"), tmp_path, QUIET)
    assert content(tmp_path) | {"settings": (tmp_path / "config.toml").read_bytes()} == before


def test_folder_of_a_run_that_could_not_start_is_free(tmp_path, monkeypatch):
    from longtail.runs import session

    def missing(*args):
        raise ValueError("no such data")

    with monkeypatch.context() as patch:
        patch.setattr(session, "build_run", missing)
        with pytest.raises(ValueError, match="no such data"):
            train_run(small(), tmp_path, QUIET)
    train_run(small("seed=4"), tmp_path, QUIET)
    assert resolve(file=tmp_path / "config.toml").seed == 4


def test_stopped_while_writing_results(tmp_path, whole, monkeypatch):
    out = tmp_path / "pieces"

    def full(files, runs, content):
        raise OSError(28, "No space left on device", str(files.result))

    with monkeypatch.context() as patch:
        patch.setattr(RunFiles, "finish", full)
        with pytest.raises(OSError, match=r"No space left on device: .*summary\.json"):
            train_run(small(), out, QUIET)
    steps = []
    train_run(small(), out, QUIET, on_step=steps.append)
    assert steps == []  # training was over
    assert content(out) == whole


def test_signal_saves_at_once_and_the_next_call_goes_on(tmp_path, whole):
    out = tmp_path / "pieces"
    handler = signal.getsignal(signal.SIGTERM)
    with pytest.raises(Stopped, match="the same command goes on from there") as stop:
        train_run(small(), out, QUIET, on_step=stop_after(7))
    assert stop.value.code == 143
    assert signal.getsignal(signal.SIGTERM) is handler
    assert len(Snapshots(out / "snapshot").files()) == 1
    assert not (out / "summary.json").exists()
    heard = Heard()
    calls = []
    train_run(small(), out, reporter=heard, on_step=calls.append)
    assert heard.named("start")[0][2] is not None
    assert content(out) == whole
    assert json.loads((out / "timing.json").read_text())["sessions"] == 2


def test_a_run_that_does_without_snapshots_ends_the_same_and_begins_anew(tmp_path, whole):
    out, never = tmp_path / "without", RunOptions(quiet=True, snapshot_minutes=float("inf"))
    with pytest.raises(Stopped, match="the same command begins it anew"):
        train_run(small(), out, never, on_step=stop_after(7))
    train_run(small(), out, never)
    assert content(out) == whole
    assert Snapshots(out / "snapshot").files() == []
    assert json.loads((out / "timing.json").read_text())["snapshots"]["count"] == 0


@pytest.mark.parametrize("stack", [False, True])
def test_a_run_may_go_on_without_the_snapshots_it_began_with(tmp_path, stack):
    def go(out: Path, options: RunOptions = QUIET, **more: Any) -> None:
        if stack:
            train_stack([small()], out, options, **more)
        else:
            train_run(small(), out, options, **more)

    go(tmp_path / "whole")
    out, never = tmp_path / "pieces", RunOptions(quiet=True, snapshot_minutes=float("inf"))
    with pytest.raises(Stopped, match="goes on from there"):
        go(out, on_step=stop_after(5))
    with pytest.raises(Stopped, match="goes on from an earlier snapshot"):
        go(out, never, on_step=stop_after(4))
    go(out, never)
    names = ("scores.npz",) if stack else ("scores.jsonl", "summary.json", "model.safetensors")
    for name in names:
        assert (out / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    assert Snapshots(out / "snapshot").files() == []  # the one it had was of its middle


def stopped_twice(out: Path) -> list[Path]:
    """A run with two snapshots, the newer one further on."""
    for steps in (5, 12):
        with pytest.raises(Stopped):
            train_run(small(), out, QUIET, on_step=stop_after(steps))
    return Snapshots(out / "snapshot").files()


class Restless(Finetune):
    """Draws from the generators of Python, NumPy and torch in every step."""

    name = "restless"

    def loss(self, batch):
        return super().loss(batch) * (random.random() + np.random.rand() + torch.rand(()))


def test_generators_that_a_method_draws_from_go_on_too(tmp_path, monkeypatch):
    monkeypatch.setitem(METHODS, "restless", Restless)
    config = small("method=restless")
    train_run(config, tmp_path / "whole", QUIET)
    with pytest.raises(Stopped):
        train_run(config, tmp_path / "pieces", QUIET, on_step=stop_after(5))
    random.seed(1)
    np.random.seed(1)
    torch.manual_seed(1)
    train_run(config, tmp_path / "pieces", QUIET)
    assert content(tmp_path / "pieces") == content(tmp_path / "whole")


def cut_off(out: Path) -> None:
    newest = Snapshots(out / "snapshot").files()[-1]
    newest.write_bytes(newest.read_bytes()[:-100])


def emptied(out: Path) -> None:
    for path in Snapshots(out / "snapshot").files():
        path.write_bytes(b"")


def lacking(out: Path, entry: str) -> None:
    snapshots = Snapshots(out / "snapshot", config=small().as_dict())
    state = snapshots.load()
    assert state is not None
    for holder in (state, state["run"]):
        holder.pop(entry, None)
    snapshots.save(state, keep=3)


def without_scores(out: Path) -> None:
    (out / "scores.jsonl").write_bytes(b"")


def zeroed_scores(out: Path) -> None:
    scores = out / "scores.jsonl"
    assert scores.stat().st_size
    scores.write_bytes(bytes(scores.stat().st_size))


def with_tasks(out: Path, text: str) -> None:
    (out / "tasks.json").write_text(text)


@pytest.mark.parametrize(
    ("harm", "said"),
    [
        (cut_off, "is damaged (its checksum does not match); using the one before it"),
        (emptied, "is damaged (its checksum does not match); starting from the first task"),
        (partial(lacking, entry="generators"), "it has no generators"),
        (partial(lacking, entry="optimizer"), "it has no optimizer"),
        (without_scores, "scores.jsonl has lost lines it counts on"),
        (zeroed_scores, "scores.jsonl has other lines than it counts on"),
        (partial(with_tasks, text="{"), ""),
        (partial(with_tasks, text="[" * 100_000), ""),
    ],
)
def test_what_is_damaged_is_passed_over_and_the_end_is_the_same(tmp_path, whole, harm, said):
    stopped_twice(tmp_path)
    harm(tmp_path)
    heard = Heard()
    train_run(small(), tmp_path, reporter=heard)
    warnings = [text for _, text in heard.named("warn")]
    assert (said in warnings[-1]) if said else not warnings
    assert (heard.named("start")[0][2] is None) == (
        harm in (emptied, without_scores, zeroed_scores)
    )
    assert content(tmp_path) == whole


def test_nan_scores_become_null(tmp_path):
    config = resolve(
        "synthetic", sets=["data.tasks=5", "train.lr=1e30"]
    )  # an error, so it can be NaN
    train_run(config, tmp_path, QUIET)
    lines = (tmp_path / "scores.jsonl").read_text().splitlines()
    assert json.loads(lines[-1])["scores"]["0"] is None
    assert json.loads((tmp_path / "summary.json").read_text())["RP"] is None
    for name in ("scores.jsonl", "summary.json"):
        assert not re.search(r"\b(NaN|Infinity)\b", (tmp_path / name).read_text())


def test_multitask_trains_on_the_union(tmp_path):
    summary = train_run(small("method=multitask"), tmp_path, QUIET)
    assert summary["LP"] == pytest.approx(summary["RP"])
    assert summary["FGT"] == pytest.approx(0.0)


STACK = [
    small("method=reservoir", "buffer=20", f"policy={policy}", f"seed={seed}", f"train.lr={lr}")
    for policy in ("continual", "new")
    for lr in (0.003, 0.01)
    for seed in (3, 1)
]


def test_stack_equals_its_single_runs(tmp_path):
    entries = train_stack(STACK, tmp_path / "stack", QUIET)
    assert json.loads((tmp_path / "stack" / "runs.json").read_text()) == entries
    arrays = np.load(tmp_path / "stack" / "scores.npz")
    assert arrays["own"].shape == (8, 8)
    assert arrays["curve"].shape == (8, len(arrays["after"]))
    for i, config in enumerate(STACK):
        assert entries[i]["id"] == config.id
        assert entries[i]["config"] == config.as_dict()
        single = train_run(config, tmp_path / config.id, QUIET)
        for metric in ("RP", "LP", "BWT", "FGT"):
            assert entries[i]["summary"][metric] == pytest.approx(single[metric], abs=1e-6)
        assert set(entries[i]["summary"]) == set(single)
        assert arrays["last"][i] @ arrays["test_sizes"] / arrays[
            "test_sizes"
        ].sum() == pytest.approx(single["RP"])


def test_summary_marks_a_policy_that_is_not_what_its_name_says(tmp_path):
    changed = small("policy=new", "moments.beta3=0.5")
    assert train_run(changed, tmp_path / "one", QUIET)["policy"] == "new (changed)"
    entries = train_stack([changed, small()], tmp_path / "stack", QUIET)
    names = [entry["summary"]["policy"] for entry in entries]
    assert names == ["new (changed)", "continual"]


def test_stack_resumes_to_the_same_bytes(tmp_path):
    train_stack(STACK, tmp_path / "whole", QUIET)
    out = tmp_path / "pieces"
    for steps in (4, 9):
        with pytest.raises(Stopped):
            train_stack(STACK, out, QUIET, on_step=stop_after(steps))
    train_stack(STACK, out, QUIET)
    for name in ("runs.json", "scores.npz"):
        assert (out / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


def test_finished_stack_is_left_alone_and_another_refused(tmp_path):
    first = train_stack(STACK[:2], tmp_path, QUIET)
    assert train_stack(STACK[:2], tmp_path, QUIET) == first
    with pytest.raises(ValueError, match="holds another configuration"):
        train_stack(STACK[:3], tmp_path, QUIET)


def test_stack_with_gaps_reports_only_what_was_asked(tmp_path):
    configs = [STACK[0], STACK[3]]
    entries = train_stack(configs, tmp_path, QUIET)
    assert [entry["id"] for entry in entries] == [config.id for config in configs]


def test_learning_rate_of_a_stack_is_that_of_each_config():
    stack = build_stack(STACK)
    rates = [group["lr"] for group in stack.run.optimizer.param_groups]
    assert rates == pytest.approx([0.003, 0.01, 0.003, 0.01])
    assert stack.seeds == [3, 1]


def test_a_refused_start_leaves_nothing(tmp_path):
    """Settings that only the data can refute: more tasks than there are classes."""
    config = resolve("mnist", flags={"data.miniature": True, "data.tasks": 50})
    new, empty = tmp_path / "new", tmp_path / "empty"
    empty.mkdir()
    for out in (new, empty):
        with pytest.raises(ValueError, match="more than the 10 classes"):
            train_run(config, out, QUIET)
    assert not new.exists()
    assert list(empty.iterdir()) == []
    (empty / "notes.txt").touch()
    with pytest.raises(ValueError, match=r"no folder that longtail made \(it holds notes\.txt\)"):
        train_run(config, empty, QUIET)
    assert [path.name for path in empty.iterdir()] == ["notes.txt"]


def test_a_folder_that_cannot_be_written_to_is_refused(tmp_path):
    (tmp_path / "out" / ".lock").mkdir(parents=True)  # root may write anywhere, but not into this
    write_mark(tmp_path / "out", Mark("run"))
    with pytest.raises(ValueError, match=r"--out .*out: cannot be written to \(Is a directory\)"):
        train_run(small(), tmp_path / "out", QUIET)


@pytest.mark.parametrize("text", ["", '{"RP": 0.', "[]"])
def test_a_damaged_summary_is_named(tmp_path, text):
    train_run(small(), tmp_path, QUIET)
    whole = (tmp_path / "summary.json").read_text()
    (tmp_path / "summary.json").write_text(text)
    with pytest.raises(
        ValueError, match=rf"{tmp_path} has .* summary\.json .*, or delete summary\.json"
    ):
        train_run(small(), tmp_path, QUIET)
    (tmp_path / "summary.json").unlink()
    train_run(small(), tmp_path, QUIET)  # from the last snapshot
    assert (tmp_path / "summary.json").read_text() == whole


def test_a_run_may_leave_no_weights(tmp_path):
    config = small("train.average=task")
    train_run(config, tmp_path / "whole", QUIET)
    found = train_run(config, tmp_path / "lean", replace(QUIET, weights=False))
    names = [{path.name for path in (tmp_path / f).iterdir()} for f in ("whole", "lean")]
    assert names[0] - names[1] == {"model.safetensors", "average.safetensors"}
    assert damage(RunFiles(tmp_path / "lean")) is None
    for name in ("summary.json", "scores.jsonl", "config.toml", "tasks.json"):
        assert (tmp_path / "lean" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    assert train_run(config, tmp_path / "lean", QUIET) == found  # finished is finished
    assert not (tmp_path / "lean" / "model.safetensors").exists()


@pytest.mark.parametrize("key", ["names", "train_sizes", "test_sizes"])
def test_a_run_does_not_go_on_with_other_tasks(tmp_path, whole, key):
    """As where a newer version cuts a benchmark otherwise: one run would be of both."""
    out = tmp_path / "pieces"
    stopped_twice(out)
    tasks = json.loads((out / "tasks.json").read_text())
    tasks[key][0] = "another" if key == "names" else tasks[key][0] + 1
    (out / "tasks.json").write_text(json.dumps(tasks))
    before = {path.name: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    with pytest.raises(ValueError, match=r"tasks\.json lists other tasks, or other sizes, than"):
        train_run(small(), out, QUIET)
    assert {path.name: path.read_bytes() for path in out.rglob("*") if path.is_file()} == before
    train_run(small(), out, replace(QUIET, fresh=True))
    assert content(out) == whole


def test_an_average_of_the_weights_is_scored_and_saved_beside_them(tmp_path):
    small = ["data.tasks=8", "data.zero_shot=1", "data.cap=30", "train.evaluate_every=2"]
    plain = train_run(resolve("toy", sets=small), tmp_path / "plain", RunOptions(quiet=True))
    config = resolve("toy", sets=[*small, "train.average=task"])
    found = train_run(config, tmp_path / "run", RunOptions(quiet=True))
    average = found.pop("average")
    assert found == plain  # nothing but the average is new
    assert set(average) >= {"RP", "LP", "BWT", "FGT", "breakdown"}
    assert average["curve"]["tasks"] == [1, 2, 4, 6, 8]
    assert average["curve"]["RP"][-1] == average["RP"] != plain["RP"]
    files = RunFiles(tmp_path / "run")
    own, mean = (load_file(files.folder / name) for name in (files.WEIGHTS, files.AVERAGE))
    assert own.keys() == mean.keys()
    assert not all(torch.equal(own[name], mean[name]) for name in own)
    assert not (tmp_path / "plain" / files.AVERAGE).exists()
    assert files.AVERAGE in files.recorded().sha256
    (stacked,) = train_stack([config], tmp_path / "stack", RunOptions(quiet=True))
    assert stacked["summary"]["average"]["RP"] == pytest.approx(average["RP"], abs=0.05)
    assert len(stacked["summary"]["average"]["curve"]["RP"]) == 5
