"""Runs in the tools people already use: TensorBoard, Weights & Biases, MLflow. Off by default.

    longtail run toy --log tensorboard
    longtail study my.toml --log wandb --log mlflow
    longtail report runs/my --log tensorboard            finished runs, after the fact

A logger has three methods; each library is imported when its logger is made, which is when training
begins: a run that is refused, or finished already, logs nothing. A fourth tool is one more class in
`LOGGERS`, and for anything else there are JSON lines on stdout (`--json`).
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from longtail.names import METRICS
from longtail.runs.config import flatten, own_name
from longtail.runs.progress import Moment, Reporter
from longtail.runs.values import unknown


class Logger:
    """One run's way out to a tool.

    Args:
        name: of the run, as the tool shows it.
        config: all settings, flat: {"train.lr": 0.1}.
        folder: where files go: of the run or, where ``together``, of the study it is one of.
    """

    extra = ""
    together = False

    def __init__(self, name: str, config: Mapping[str, Any], folder: Path) -> None: ...

    @staticmethod
    def forget(name: str, folder: Path) -> None:
        """Remove what an earlier run of this name left, where the tool would mix the two."""

    def log(self, values: Mapping[str, float], step: int) -> None: ...

    def finish(self, summary: Mapping[str, float]) -> None: ...


class TensorBoard(Logger):
    """Event files in `<folder>/tensorboard/<name>`: TensorBoard calls a run by its folder."""

    extra = "tensorboard"
    together = True

    @staticmethod
    def forget(name: str, folder: Path) -> None:
        refuse_links(name, folder)
        for path in (folder / "tensorboard" / slug(name)).glob("events.out.tfevents.*"):
            path.unlink()

    def __init__(self, name: str, config: Mapping[str, Any], folder: Path) -> None:
        from torch.utils.tensorboard.writer import SummaryWriter

        self.writer = SummaryWriter(str(folder / "tensorboard" / slug(name)))
        rows = "\n".join(f"    {k} = {v}" for k, v in config.items())
        self.writer.add_text("settings", f"{name}\n\n{rows}")

    def log(self, values: Mapping[str, float], step: int) -> None:
        for key, value in values.items():
            self.writer.add_scalar(key, value, step)

    def finish(self, summary: Mapping[str, float]) -> None:
        for key, value in summary.items():
            self.writer.add_scalar(f"final/{key}", value)
        self.writer.close()


class WeightsAndBiases(Logger):
    """Offline, in `<folder>/wandb` for `wandb sync`, unless WANDB_MODE says online."""

    extra = "wandb"

    def __init__(self, name: str, config: Mapping[str, Any], folder: Path) -> None:
        import wandb

        self.run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", "longtail"),
            name=name,
            config=dict(config),
            dir=str(folder),
            mode="online" if os.environ.get("WANDB_MODE") == "online" else "offline",
            settings=wandb.Settings(silent=True),
            reinit="create_new",
        )

    def log(self, values: Mapping[str, float], step: int) -> None:
        self.run.log({**values, "tasks": step})

    def finish(self, summary: Mapping[str, float]) -> None:
        self.run.summary.update({f"final/{k}": v for k, v in summary.items()})
        self.run.finish()


class MLflow(Logger):
    """To MLFLOW_TRACKING_URI, else to files in `<folder>/mlruns`."""

    extra = "mlflow"

    def __init__(self, name: str, config: Mapping[str, Any], folder: Path) -> None:
        from mlflow import MlflowClient

        address = os.environ.get("MLFLOW_TRACKING_URI") or (folder / "mlruns").resolve().as_uri()
        # MLflow asks for a database by default; plain files need no server and travel with the run.
        os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
        self.client = MlflowClient(tracking_uri=address)
        title = os.environ.get("MLFLOW_EXPERIMENT_NAME", "longtail")
        known = self.client.get_experiment_by_name(title)
        experiment = known.experiment_id if known else self.client.create_experiment(title)
        self.run = self.client.create_run(experiment, run_name=name).info.run_id
        for key, value in config.items():
            self.client.log_param(self.run, key, value)

    def log(self, values: Mapping[str, float], step: int) -> None:
        for key, value in values.items():
            self.client.log_metric(self.run, key, value, step=step)

    def finish(self, summary: Mapping[str, float]) -> None:
        for key, value in summary.items():
            self.client.log_metric(self.run, f"final_{key}", value)
        self.client.set_terminated(self.run)


def slug(name: str) -> str:
    """A name for a folder that a person can read.

    >>> slug("my:Anchor continual, lr 0.1, seed 3")
    'my.Anchor_continual_lr_0.1_seed_3'
    """
    text = "".join(c if c.isalnum() or c in "._-+= " else "." if c == ":" else "" for c in name)
    return "_".join(text.split()).strip(".")[:120] or "run"


LOGGERS: dict[str, type[Logger]] = {
    "tensorboard": TensorBoard,
    "wandb": WeightsAndBiases,
    "mlflow": MLflow,
}
FOLDERS = ("tensorboard", "wandb", "mlruns")  # theirs, below a run or a study


def make(tool: str, name: str, config: Mapping[str, Any], folder: Path) -> Logger:
    """The logger called `tool`; `ValueError` says what to install where its library is missing."""
    require(tool)
    folder.mkdir(parents=True, exist_ok=True)
    refuse_links(name, folder)
    try:
        return LOGGERS[tool](name, config, folder)
    except ImportError as error:
        extra = LOGGERS[tool].extra
        raise ValueError(f"{error}: pip install 'longtail[{extra}]'") from None


def refuse_links(name: str, folder: Path) -> None:
    """Refuse to log into a folder that is elsewhere."""
    for path in (*(folder / of for of in FOLDERS), folder / "tensorboard" / slug(name)):
        if path.is_symlink():
            raise ValueError(f"{path} is a link, and longtail writes through none: remove it")


def require(tool: str) -> None:
    """Refuses a tool nobody knows, or whose library is not installed."""
    if tool not in LOGGERS:
        raise unknown("logger", tool, LOGGERS)
    extra = LOGGERS[tool].extra  # named like the package
    if extra and find_spec(extra) is None:
        raise ValueError(f"--log {tool} needs its package: pip install 'longtail[{extra}]'")


class Logged(Reporter):
    """A reporter that also tells loggers: RP as tasks are learned, and the metrics at the end."""

    every = 1.0

    def __init__(self, inner: Reporter, make_loggers: Callable[[bool], list[Logger]]) -> None:
        self.inner, self.make_loggers = inner, make_loggers
        self.loggers: list[Logger] = []

    def start(self, title: str, tasks: int, resumed: int | None) -> None:
        self.loggers = self.make_loggers(resumed is None)
        self.inner.start(title, tasks, resumed)

    def update(self, moment: Moment) -> None:
        self.inner.update(moment)
        if moment.rp is not None and math.isfinite(moment.rp):
            for logger in self.loggers:
                logger.log({"RP": moment.rp, "task_size": float(moment.size)}, moment.done)

    def warn(self, text: str) -> None:
        self.inner.warn(text)

    def finish(self, summary: Mapping[str, Any], out: str) -> None:
        self.inner.finish(summary, out)
        for logger in self.loggers:
            logger.finish(finite_metrics(summary))
        self.loggers = []

    def close(self) -> None:
        self.inner.close()


def logged(
    inner: Reporter,
    tools: Sequence[str],
    config: Any,
    folder: Path,
    *,
    name: str = "",
    study: Path | None = None,
) -> Reporter:
    """`inner`, with a logger of this run for every tool named.

    Args:
        inner: what shows the run here.
        tools: names in `LOGGERS`.
        config: of the run.
        folder: of the run.
        name: as a study calls the run; where none is given, by what it is.
        study: the study's folder, for tools that show runs of one folder together.
    """
    if not tools:
        return inner
    tree = config.as_dict()
    method = own_name(config.method)
    name = name or f"{tree['benchmark']}-{method}-{tree['policy']}-s{tree['seed']}"
    for tool in tools:
        require(tool)

    def make_loggers(anew: bool) -> list[Logger]:
        places = {tool: study if study and LOGGERS[tool].together else folder for tool in tools}
        for tool in tools if anew else ():
            LOGGERS[tool].forget(name, places[tool])
        return [make(tool, name, flatten(tree), places[tool]) for tool in tools]

    return Logged(inner, make_loggers)


def finite_metrics(summary: Mapping[str, Any]) -> dict[str, float]:
    values = {name: summary.get(name) for name in METRICS}
    return {k: float(v) for k, v in values.items() if v is not None and math.isfinite(v)}
