import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from helpers.made_up_runs import change_summaries, config, scored, write_run, write_study
from longtail.report import figures, read, series
from longtail.report.figures import Figure, axis_for, draw, look_of
from longtail.report.frame import Frames, Line
from longtail.report.series import Series
from longtail.report.table import build
from longtail.report.verdicts import MC, default_claims, finding


def drawn(frames: Frames, pair: tuple[str, str] = MC) -> dict[str, Figure]:
    return {figure.name: figure for figure in draw(frames.lines, build(frames), pair)}


def test_figures_in_three_forms_and_the_same_twice(tmp_path: Path):
    frames = read(write_study(tmp_path, tasks=40, every=5))
    shown = list(drawn(frames).values())
    paths = figures.write(shown, tmp_path / "one")
    assert {path.stem for path in paths} == set(figures.NAMES)
    assert {path.suffix for path in paths} == {".svg", ".pdf", ".png"}
    figures.write(shown, tmp_path / "two", figures.NAMES[:2])
    again = sorted(path.name for path in (tmp_path / "two").iterdir())
    assert again == sorted(path.name for path in paths if path.stem in figures.NAMES[:2])
    for name in again:
        if not name.endswith("pdf"):  # which says when it was made
            one, two = ((tmp_path / folder / name).read_bytes() for folder in ("one", "two"))
            assert one == two, name


def test_a_figure_shows_every_line_of_the_table_with_its_name(tmp_path: Path):
    frames = read(write_study(tmp_path, tasks=40, every=5))
    paths = figures.write([drawn(frames)["rp_by_tasks"]], tmp_path / "out")
    text = next(path for path in paths if path.suffix == ".svg").read_text()
    for line in frames.lines:
        assert f">{line.name}<" in text
    lines = re.findall(r'aria-roledescription="line mark"[^>]*d="([^"]*)"', text)
    assert len(lines) == len(frames.lines)
    assert len(set(lines)) == len(lines)
    assert all(path.count("L") == 40 // 5 - 1 for path in lines)


def look(*labels: tuple[str, str]) -> Any:
    runs = read(Path(__file__).parent).in_unit
    return look_of([Line({"method": m, "policy": p}, runs, ()) for m, p in labels], MC)


def test_colours_tell_methods_apart_and_policies_differ_in_colour_and_dash():
    for methods in (("ewc",), ("ewc", "agem")):
        both = [(m, p) for m in methods for p in ("continual", MC[1], "another")]
        shown = look(*both)
        assert len(set(shown.colours)) == len(both)
        for place in range(len(methods)):
            dashes = shown.dashes[3 * place : 3 * place + 3]
            assert len(set(map(tuple, dashes))) == 3
    same = look(("ewc", "continual"), ("agem", "continual"), ("ewc", MC[1]))
    assert same.dashes[0] == same.dashes[1] != same.dashes[2]
    assert same.widths[0] > same.widths[2]


def test_a_method_has_the_same_colour_whatever_stands_beside_it():
    pair = look(("ewc", "continual"), ("agem", "continual"))
    turned = look(("agem", "continual"), ("ewc", "continual"))
    assert pair.colours == turned.colours[::-1]


@pytest.mark.parametrize(
    ("ends", "kind"),
    [([80, 75], None), ([0.1, 300.0], "log"), ([0.1, 300.0, -2.0], "symlog")],
)
def test_values_that_span_decades_get_a_logarithmic_axis(ends: Sequence[float], kind: str | None):
    lines = [Series(np.arange(2), np.array([end, end]), np.zeros(2)) for end in ends]
    scale = axis_for([lines]).to_dict()
    assert scale.get("type") == kind
    if kind == "symlog":
        assert scale["constant"] < 2.0  # the smallest values are told from 0


def test_a_line_of_many_points_keeps_its_ends_and_extremes():
    rng = np.random.default_rng(0)
    y = rng.normal(size=20_000)
    y[[777, 15_000]] = 50.0, -50.0
    whole = Series(np.arange(20_000), y, np.full(20_000, 0.1))
    thin = series.thinned(whole)
    assert len(thin.x) <= series.MOST_POINTS
    assert (thin.x[0], thin.x[-1]) == (0, 19_999)
    assert {50.0, -50.0} <= set(thin.mean)
    assert (np.diff(thin.x) > 0).all()
    few = Series(whole.x[:5], y[:5], whole.half[:5])
    assert series.thinned(few) is few


def test_what_has_no_room_is_counted_and_multi_task_training_is_not_the_first_to_go(
    tmp_path: Path, monkeypatch
):
    write_study(tmp_path, tasks=40, every=5, seeds=1)
    settings = config("multitask", "new", 0)
    write_run(tmp_path / "runs" / "mtl", settings, tasks=40, every=40)
    frames = read(tmp_path)
    assert "not drawn" not in drawn(frames)["rp_by_tasks"].caption
    monkeypatch.setattr(figures, "MOST_LINES", 3)
    figure = drawn(frames)["rp_by_tasks"]
    assert figure.caption.endswith("; and 4 more, not drawn")
    points = figure.panels[0].data["rp_by_tasks 0 points"]
    assert "MTL" in points["line"]
    assert len(set(points["line"])) == 3
    (alone,) = [a for a, line in zip(points["alone"], points["line"], strict=True) if line == "MTL"]
    assert alone  # a point, as it is scored at the end


def test_the_figure_of_a_finding_shows_what_its_checks_compare(tmp_path: Path, monkeypatch):
    frames = read(write_study(tmp_path, tasks=40, every=5))
    table = build(frames)
    said = finding(table, default_claims(table, MC))
    figure = figures.of_finding(said, frames.lines, table, MC)
    assert figure is not None
    assert "filled with MC; blue: holds" in figure.caption
    (data,) = figure.panels[0].data.values()
    assert data["name"] == ["Finetune", "EWC", "DER++"]
    monkeypatch.setattr(figures, "MOST_ROWS", 2)
    dots = figures._dots(frames.lines, table, MC)
    assert dots is not None
    assert dots.caption.startswith("RP of the first 2 of 6 rows, mean ± standard error")


def test_series_say_what_the_scores_do(tmp_path: Path):
    write_study(tmp_path, tasks=40, every=5)
    lines = {(x.labels["method"], x.labels["policy"]): x for x in read(tmp_path).lines}
    with_mc, without = lines["ewc", "continual"], lines["ewc", "new"]
    gap = series.difference(with_mc, without, 100)
    assert (np.diff(gap.mean) > 0).all()
    assert gap.mean[-1] == pytest.approx((with_mc.values("RP") - without.values("RP")).mean())
    aged = series.retention(without, 100)
    assert (np.diff(aged.mean) < 0).all()
    lost = series.forgetting_by_size(without, 100)
    assert lost.mean[-1] > lost.mean[0]  # the large tasks are the early ones here


def test_series_of_an_error_and_of_multitask(tmp_path: Path):
    for method in ("finetune", "multitask"):
        write_run(tmp_path / method, config(method), tasks=40, every=5)
    finetune, multitask = read(tmp_path).lines
    for empty in (series.retention, series.forgetting_by_size):  # it learns no task after another
        assert len(empty(finetune, 1).x) > 0
        assert len(empty(multitask, 1).x) == 0
    lost = series.forgetting_by_size(finetune, 1)
    change_summaries(tmp_path, lambda run: scored("mse", "mse", higher_is_better=False))
    turned = series.forgetting_by_size(read(tmp_path).lines[0], 1)
    assert turned.x == pytest.approx(lost.x)
    assert (turned.mean >= 0).all()  # the best error is the lowest, and what follows is above it
    assert (lost.mean >= 0).all()
