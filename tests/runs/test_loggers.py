import json
from pathlib import Path

import pytest

from helpers.made_up_runs import config, write_run
from longtail import cli
from longtail.report import read
from longtail.runs.loggers import LOGGERS, Logged, Logger, make, require, slug
from longtail.runs.progress import Moment, Reporter
from longtail.study.logged import log_result


class Noted(Reporter):
    def __init__(self) -> None:
        self.updates: list[Moment] = []

    def update(self, moment: Moment) -> None:
        self.updates.append(moment)


def moment(done: int, rp: float | None) -> Moment:
    return Moment(done, 10, "word", 5, rp, None)


def run_logged(tool: str, folder: Path) -> None:
    inner = Noted()
    settings = {"train.lr": 0.1, "method": "ewc"}
    tell = Logged(inner, lambda anew: [make(tool, "a run", settings, folder)])
    assert not any(folder.iterdir())
    tell.start("a run", 10, None)
    tell.update(moment(1, None))
    tell.update(moment(2, 0.5))
    tell.update(moment(3, float("nan")))
    tell.update(moment(4, 0.75))
    tell.finish({"RP": 0.7, "LP": 0.8, "FGT": None, "BWT": -0.1, "score": "accuracy"}, "out")
    assert len(inner.updates) == 4


@pytest.mark.filterwarnings("ignore")
def test_tensorboard_event_files(tmp_path: Path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run_logged("tensorboard", tmp_path)
    events = EventAccumulator(str(tmp_path / "tensorboard" / "a_run")).Reload()
    assert [(e.step, e.value) for e in events.Scalars("RP")] == [(2, 0.5), (4, 0.75)]
    assert events.Scalars("final/LP")[0].value == pytest.approx(0.8)
    assert "final/FGT" not in events.Tags()["scalars"]


@pytest.mark.filterwarnings("ignore")
def test_mlflow_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    run_logged("mlflow", tmp_path)
    client = mlflow.MlflowClient(tracking_uri=(tmp_path / "mlruns").resolve().as_uri())
    experiment = client.get_experiment_by_name("longtail")
    (run,) = client.search_runs([experiment.experiment_id])
    assert run.data.params["train.lr"] == "0.1"
    assert run.data.metrics["final_RP"] == 0.7
    assert [m.value for m in client.get_metric_history(run.info.run_id, "RP")] == [0.5, 0.75]
    assert run.info.status == "FINISHED"


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_wandb_offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    pytest.importorskip("wandb")
    monkeypatch.delenv("WANDB_MODE", raising=False)
    run_logged("wandb", tmp_path)
    (folder,) = tmp_path.glob("wandb/offline-run-*")
    assert list(folder.glob("*.wandb"))


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> list[tuple]:
    """What a logger called `memory` is told."""
    seen: list[tuple] = []

    class Memory(Logger):
        def __init__(self, name, config, folder):
            seen.append((name, config["train.lr"]))

        def log(self, values, step):
            seen.append((step, values["RP"]))

        def finish(self, summary):
            seen.append(tuple(summary))

    monkeypatch.setitem(LOGGERS, "memory", Memory)
    return seen


def test_a_run_is_logged_once_and_only_where_it_begins(tmp_path: Path, seen: list[tuple], capsys):
    command = ["run", "toy", "--tasks", "4", "--zero-shot", "0", "--log", "memory", "--quiet"]
    command += ["--out", str(tmp_path / "out")]
    assert cli.main([*command, "--device", "cuda:99"]) == 2  # refused
    assert seen == []
    assert cli.main(command) == 0
    assert seen[0] == ("toy-finetune-continual-s0", 0.01)
    assert seen[-1] == ("RP", "LP", "FGT", "BWT")
    count = len(seen)
    assert cli.main(command) == 0  # finished
    assert cli.main([*command, "--lr", "0.5"]) == 2  # the folder of another run
    assert len(seen) == count


def test_finished_run_is_logged_from_its_files(tmp_path: Path, seen: list[tuple]):
    write_run(tmp_path, config("ewc", seed=3))
    (run,) = read(tmp_path).entries
    log_result(run, ["memory"], tmp_path, name="ewc continual, seed 3")
    assert seen[0] == ("ewc continual, seed 3", 0.01)
    assert seen[-2] == (
        12,
        pytest.approx(json.loads((tmp_path / "summary.json").read_text())["RP"]),
    )
    assert seen[-1] == ("RP", "LP", "FGT", "BWT")


def test_unknown_and_uninstalled_tools_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    with pytest.raises(ValueError, match="tensorboard"):
        make("tensorbord", "x", {}, tmp_path)

    class Missing(LOGGERS["wandb"]):  # type: ignore[misc]
        def __init__(self, *_):
            raise ImportError("No module named 'wandb'")

    monkeypatch.setitem(LOGGERS, "wandb", Missing)
    with pytest.raises(ValueError, match=r"longtail\[wandb\]"):
        make("wandb", "x", {}, tmp_path)
    monkeypatch.setattr(LOGGERS["mlflow"], "extra", "no_such_package")
    with pytest.raises(ValueError, match=r"--log mlflow needs its package: pip install"):
        require("mlflow")


class Events(Logger):
    """Writes where TensorBoard would, without it."""

    together = True
    forget = staticmethod(LOGGERS["tensorboard"].forget)

    def __init__(self, name, config, folder):
        self.folder = folder / "tensorboard" / slug(name)
        self.folder.mkdir(parents=True, exist_ok=True)
        count = len(list(self.folder.iterdir()))
        (self.folder / f"events.out.tfevents.{count}").write_text("")


STUDY = """
benchmark = "toy"
policies = ["new"]
seeds = [0, 1]
stack = {stack}
[data]
tasks = 4
zero_shot = 0
[grid]
"train.lr" = [0.1, 0.01]
"""


@pytest.mark.parametrize("stack", ["true", "false"])
def test_tensorboard_shows_a_study_with_names_that_a_person_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stack: str
):
    monkeypatch.setitem(LOGGERS, "events", Events)
    (tmp_path / "s.toml").write_text(STUDY.format(stack=stack))
    command = ["study", str(tmp_path / "s.toml"), "--out", str(tmp_path / "out"), "--quiet"]
    command += ["--no-report", "--log", "events"]
    assert cli.main(command) == 0
    assert cli.main([*command, "--fresh"]) == 0  # whose curves take the place of the others
    found = {path.name: len(list(path.iterdir())) for path in tmp_path.glob("out/tensorboard/*")}
    assert found == {
        f"finetune_new_lr_{lr}_seed_{seed}": 1 for lr in (0.1, 0.01) for seed in (0, 1)
    }
    assert len(read(tmp_path / "out").finished) == 4


def test_names_of_folders_lead_nowhere_else():
    assert slug("../../etc: a/b, seed 1") == "etc._ab_seed_1"
    assert slug("///") == "run"
