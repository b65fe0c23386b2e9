"""The documentation site: all pages are on it, their links lead on, and it fetches nothing."""

from __future__ import annotations

import importlib
import json
import os
import re
import subprocess
import sys
import zlib
from pathlib import Path
from typing import Any

import pytest

from helpers.scripts import ROOT, load

DOCS = ROOT / "docs"
REPOSITORY = "https://github.com/longtail-cl/longtail"
ROOMS = ("optim", "methods", "metrics", "tasks", "training", "replicas", "benchmarks")
NAV = re.findall(
    r"^ +- (?:.+: )?([\w/]+\.md)$", (ROOT / "mkdocs.yml").read_text("utf-8"), re.MULTILINE
)


@pytest.fixture(scope="module")
def hooks() -> Any:
    pytest.importorskip("mkdocs")
    return load("docs/site/hooks.py")


def test_a_new_page_finds_its_section(hooks: Any) -> None:
    """Who adds a page need not know of the navigation."""
    nav: list[Any] = [
        {"Home": "README.md"},
        {"Guides": [{"Running": "running.md"}, {"Loops": ["integrations/README.md"]}]},
        {"Methods": [{"EWC": "methods/ewc.md"}]},
        {"Results": [{"Table 1": "bench/results/table1/README.md"}]},
    ]
    new = ["methods/si.md", "cluster.md", "integrations/jax.md", "bench/results/soak/README.md"]
    hooks.complete(nav, [*new, "README.md", "running.md"])
    assert nav[1]["Guides"][1]["Loops"][-1] == "integrations/jax.md"
    assert nav[1]["Guides"][-1] == "cluster.md"
    assert nav[2]["Methods"][-1] == "methods/si.md"
    assert nav[3]["Results"][-1] == "bench/results/soak/README.md"
    assert len(nav) == 4


def test_a_link_is_rewritten_for_the_site(hooks: Any) -> None:
    pages = {*NAV, "figures/rooms.svg", "bench/results/vqa/figures/rp_by_tasks.svg"}

    def there(place: str, link: str) -> str:
        return hooks.LINK.sub(
            lambda m: hooks.site_link(m, place, pages, REPOSITORY), f"[x]({link})"
        )[4:-1]

    assert there("running.md", "continual_adam.md#what-it-does") == "continual_adam.md#what-it-does"
    wsd = there("benchmarks/wsd.md", "../../bench/results/wsd/README.md")
    assert wsd == "../bench/results/wsd/README.md"
    assert there("README.md", "notebooks/own_method.ipynb") == "notebooks/own_method.md"
    assert there("bench/REPRODUCIBILITY.md", "../docs/benchmarks/wsd.md") == "../benchmarks/wsd.md"
    assert there("CHANGELOG.md", "docs/architecture.md") == "architecture.md"
    assert (
        there("architecture.md", "../src/longtail/metrics.py")
        == f"{REPOSITORY}/blob/main/src/longtail/metrics.py"
    )
    assert there("architecture.md", "../perf") == f"{REPOSITORY}/tree/main/perf"
    assert there("running.md", "https://example.org") == "https://example.org"
    assert there("running.md", "no_such_page.md") == "no_such_page.md"  # which the build reports


def test_docstrings_become_markdown() -> None:
    pytest.importorskip("griffe")
    pytest.importorskip("latex2mathml")
    as_markdown = load("docs/site/docstrings.py").as_markdown
    assert as_markdown("Call :meth:`end_task` of :class:`~torch.optim.Adam`.") == (
        "Call `end_task` of `torch.optim.Adam`."
    )
    assert as_markdown("Example:\n    >>> 1") == "Examples:\n    >>> 1"
    text = as_markdown("Where\n\n.. math::\n    a &= b_1 \\\\\n    c &= d\n\nand :math:`v_c`.")
    assert text.count("<mtr>") == 2
    assert ".. math" not in text
    assert "$" not in text
    assert text.endswith("</math>.")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built as `make docs` does; a warning is an error."""
    pytest.importorskip("mkdocs")
    pytest.importorskip("mkdocstrings_handlers.python")
    out = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(out)]
    quiet = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=quiet, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return out


@pytest.mark.slow
def test_the_site_has_every_public_name(site: Path) -> None:
    inventory = (site / "objects.inv").read_bytes()
    body = zlib.decompress(inventory.split(b"zlib.\n", 1)[1]).decode()
    known = {line.split(" ", 1)[0] for line in body.splitlines()}
    for room in ROOMS:
        module = importlib.import_module(f"longtail.{room}")
        for name in getattr(module, "__all__", ("ScoreMatrix", "summary", "curve")):
            places = {f"longtail.{room}.{name}", f"longtail.{room}.{name}.{name}"}
            assert places & known, f"longtail.{room}.{name} is not in the reference"
    assert {"longtail.report.checks.claim", "longtail.report.read"} <= known


@pytest.mark.slow
def test_the_site_fetches_nothing_and_can_be_searched(site: Path) -> None:
    fetched = re.compile(
        r'<(?:script|img|iframe)[^>]+src="(?:https?:)?//|<link[^>]+rel="stylesheet"[^>]+href="(?:https?:)?//'
    )
    for path in site.rglob("*.html"):
        assert not fetched.search(path.read_text(encoding="utf-8")), path
    index = json.loads((site / "search" / "search_index.json").read_text(encoding="utf-8"))
    found = {entry["location"].partition("#")[0] for entry in index["docs"]}
    assert {"continual_adam/", "api/optim/", "notebooks/first_steps/"} <= found
    assert "bench/results/table1/" in found


@pytest.mark.slow
def test_formulas_and_pictures_are_drawn(site: Path) -> None:
    reference = (site / "api" / "optim" / "index.html").read_text(encoding="utf-8")
    assert '<math xmlns="http://www.w3.org/1998/Math/MathML" display="block">' in reference
    assert not re.search(r"<p>[^<]*:(?:meth|class|func|math):", reference)
    tutorial = (site / "notebooks" / "every_week" / "index.html").read_text(encoding="utf-8")
    assert "data:image/png;base64," in tutorial
    assert (site / "bench" / "results" / "vqa" / "figures" / "rp_by_tasks.svg").is_file()
