import re
from pathlib import Path

from helpers.made_up_runs import config, identity, write_run, write_study
from longtail.report import tables
from longtail.report.results import load
from longtail.report.results_table import as_html
from longtail.report.tables import Table


def table_of(folder: Path, **report) -> Table:
    results = load(folder)
    results.plan = {"report": report}
    return tables.build(results)


def test_one_metric_is_shown_at_a_time_with_its_definition(tmp_path: Path):
    text = as_html(table_of(write_study(tmp_path)))
    parts = re.findall(r'<div class="metric" data-metric="(\w+)"( hidden)?>', text)
    assert parts == [("RP", ""), ("LP", " hidden"), ("FGT", " hidden"), ("BWT", " hidden")]
    buttons = re.findall(r'<button type="button" data-metric="(\w+)" aria-pressed="(\w+)"', text)
    assert buttons == [("RP", "true"), ("LP", "false"), ("FGT", "false"), ("BWT", "false")]
    assert "<strong>FGT</strong>, forgetting: mean difference between" in text
    assert "Lower is better. In percent." in text
    assert '<abbr title="a new AdamW: its moments start at zero' in text


def test_the_legend_explains_what_the_table_has_and_nothing_else(tmp_path: Path):
    plain = as_html(table_of(write_study(tmp_path)))
    legend = plain[plain.index("<details") :]
    for word in ("RP", "LP", "FGT", "BWT", "Continual AdamW", "AdamW new"):
        assert f"<dt><strong>{word}</strong></dt>" in legend
    assert "≠" not in legend
    assert "†" not in legend
    paper = as_html(table_of(tmp_path, paper="wsd"))
    legend = paper[paper.index("<details") :]
    for words in (["=", "~", "≠"], ("within 1 point of it", "within 5 points", "further away")):
        assert all(word in legend for word in words)
    assert re.search(r'<span class="paper"><span class="wide">paper </span>78.76 [=~≠]', paper)


def test_rows_have_names_and_ours_is_marked(tmp_path: Path):
    table = table_of(write_study(tmp_path))
    rows = [
        {**row, "row": i + 1, "policy": name, "second_moment": "task"}
        for i, (row, name) in enumerate(zip(table.rows, ("Adam", "Continual Adam"), strict=False))
    ]
    table.rows, table.index, table.columns = rows, ["row", "second_moment"], None
    text = as_html(table, ours="Continual Adam")
    marked = re.findall(r'<tr class="ours"><th scope="row">([^<]*)<', text)
    assert set(marked) == {"Continual Adam (row 2)"}
    assert ">Adam (row 1)<" in text
    assert "averaged over all earlier tasks" in text  # what `task` means


def test_names_stay_text(tmp_path: Path):
    for seed in (0, 1):
        settings = config("<img src=x>", seed=seed)
        write_run(tmp_path / identity(settings), settings)
    write_run(tmp_path / "other", config("ewc"))
    table = table_of(tmp_path, title="<b>")
    table.unit = "<u>"
    text = as_html(table)
    assert "<img" not in text
    assert "<u>" not in text
    assert "&lt;img src=x&gt;" in text


def test_a_row_whose_seeds_all_diverged_says_so(tmp_path: Path):
    table = table_of(write_study(tmp_path))
    table.rows[0] |= {"diverged": 3, **dict.fromkeys(table.metrics)}
    text = as_html(table)
    assert text.count('title="every seed diverged">diverged†') == len(table.metrics)
    assert "nan" not in text
