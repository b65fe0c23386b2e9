r"""`table.tex` fits a page: by its structure everywhere, by compiling it where a LaTeX is there."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from helpers.made_up_runs import write_study
from longtail.names import METRICS
from longtail.report import read
from longtail.report.frame import Kinds
from longtail.report.reading import ScoreKind
from longtail.report.table import Table, build
from longtail.report.text import MOST_LINES, escape, latex

PDFLATEX, TECTONIC = shutil.which("pdflatex"), shutil.which("tectonic")
PAGE = """\\documentclass{article}
\\usepackage{booktabs,graphicx}
\\begin{document}
\\input{table.tex}
\\end{document}
"""


def ablation() -> Table:
    """Eleven named rows in three settings with the paper's numbers, as in Table 1."""
    names = ["Continual Adam, not adjusted", "Adam", "both TA, adjusted & <50%> of $x_1$"]
    rows = [
        {
            "method": "finetune", "policy": names[row % 3], "row": row, "setting": setting,
            "second_moment": "task", "seeds": 9, "diverged": int(row == 4),
            **dict.fromkeys(METRICS, 0.1234 * row), **{f"{m}_se": 0.0123 for m in METRICS},
            "RP_paper": 1.12 * row,
        }
        for row in range(1, 12) for setting in ("same", "perturb", "shift")
    ]  # fmt: skip
    index = ["row", "second_moment"]
    kinds = Kinds(ScoreKind("mse", higher_is_better=False), {})
    notes = ("Mean ± standard error over 9 seeds, unit: mse.", "1 run diverged (marked †).")
    title = 'Rows & "settings"'
    return Table(title, rows, list(METRICS), kinds, index, "setting", notes=notes)


def many_columns() -> Table:
    """Twenty columns, more than fit side by side, and more rows than a page has lines."""
    rows = [
        {"method": f"my_package.method_{i}", "policy": "new", "lr": f"rate {j}", "seeds": 3}
        | {"RP": 12.34 + i, "RP_se": 0.56}
        for i in range(45)
        for j in range(20)
    ]
    kinds = Kinds(ScoreKind("percent", higher_is_better=True), {})
    return Table("Rates", rows, ["RP"], kinds, ["method"], "lr")


def tabulars(text: str) -> list[list[str]]:
    """The lines of every table between its rules."""
    found = re.findall(r"\\toprule\n(.*?)\\bottomrule", text, flags=re.DOTALL)
    return [[line for line in body.splitlines() if line.endswith("\\\\")] for body in found]


def test_one_table_a_metric_with_its_definition(tmp_path: Path):
    table = build(read(write_study(tmp_path)))
    text = latex(table)
    assert text.count("\\begin{table}") == text.count("\\end{table}") == len(table.metrics)
    assert "RP ($\\uparrow$), retained performance, in percent." in text
    assert "FGT ($\\downarrow$), forgetting, in percent." in text
    assert text.count("Mean $\\pm$ standard error over 3 seeds") == 1
    for lines in tabulars(text):
        assert lines[0] == "Method & Continual AdamW & AdamW new \\\\"
        assert [line.split(" & ")[0] for line in lines[1:]] == ["Finetune", "EWC", "DER++"]


def test_rows_have_names_and_no_column_that_the_name_says():
    text = latex(ablation())
    assert "Continual Adam, not adjusted (row~3)" in text
    assert "2nd moment" not in text
    for lines in tabulars(text):
        assert {line.count(" & ") for line in lines} == {3}


def test_what_is_too_long_goes_on_in_another_table_and_what_is_too_wide_is_made_smaller():
    text = latex(many_columns())
    found = tabulars(text)
    assert len(found) == 2
    assert text.count("\\resizebox{\\ifdim\\width>\\linewidth") == 2
    assert all(len(lines) <= MOST_LINES + 1 for lines in found)
    cells = sum(line.count(" & ") for lines in found for line in lines[1:])
    assert cells == 45 * 20
    assert text.count("continued.") == len(found) - 1


def test_every_character_is_printed_as_it_stands():
    assert escape("a_b & 50% <x> | ~^ \\ {#$}") == (
        r"a\_b \& 50\% \textless{}x\textgreater{} \textbar{} \textasciitilde{}\textasciicircum{} "
        r"\textbackslash{} \{\#\$\}"
    )
    assert escape("two\nlines") == "two lines"  # an empty line would end the caption


@pytest.mark.skipif(not (PDFLATEX or TECTONIC), reason="no LaTeX on this machine")
@pytest.mark.parametrize("made", [ablation, many_columns])
def test_compiles_without_a_line_that_is_too_wide(tmp_path: Path, made):
    (tmp_path / "table.tex").write_text(latex(made()))
    (tmp_path / "page.tex").write_text(PAGE)
    command = [PDFLATEX, "-interaction=nonstopmode", "-halt-on-error", "page.tex"]
    if not PDFLATEX:
        command = [TECTONIC, "--print", "--keep-logs", "page.tex"]
    done = subprocess.run(
        [str(part) for part in command], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-2000:]
    log = (tmp_path / "page.log").read_text(errors="replace")
    assert "Overfull" not in log  # neither wider nor longer than the text of a page
    assert "Float too large" not in log
