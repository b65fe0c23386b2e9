"""The page in a real browser. Needs Chromium and playwright; without them the tests are skipped."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from helpers.made_up_runs import config, identity, write_study
from longtail.report.command import write
from longtail.report.results import load

pytestmark = [
    pytest.mark.browser,
    # playwright's own event loop leaves sockets to the garbage collector
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]
CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
QUIET = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
SHOWN = """() => Object.values(plots).flatMap(p => p.renderers)
    .filter(r => typeof r.tags[0] === "number" && r.visible).length"""


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("study")
    names = [f"word{i}" for i in range(198)] + ["<script>alert(1)</script>", "<b>bold</b>"]
    write_study(folder, tasks=200, every=20, names=names)
    lost = folder / "runs" / identity(config("ewc", "new", 1)) / "summary.json"
    lost.write_text(json.dumps({**json.loads(lost.read_text()), "diverged_at": 57}))
    return write(load(folder), folder, with_figures=False)["page"]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    playwright = pytest.importorskip("playwright.sync_api")
    if CHROMIUM is None:
        pytest.skip("no Chromium on this machine")
    with playwright.sync_playwright() as p:
        found = p.chromium.launch(executable_path=CHROMIUM, args=QUIET)
        yield found
        found.close()


@pytest.fixture
def page(browser: Any, report: Path) -> Iterator[Any]:
    context = browser.new_context(viewport={"width": 1200, "height": 800}, color_scheme="light")
    page = context.new_page()
    page.complaints, page.requested = [], []
    page.on(
        "console",
        lambda m: page.complaints.append(m.text) if m.type in ("error", "warning") else None,
    )
    page.on("pageerror", lambda error: page.complaints.append(str(error)))
    page.on("request", lambda request: page.requested.append(request.url))
    page.goto(report.as_uri())
    page.wait_for_selector("html[data-ready]", state="attached", timeout=60_000)
    yield page
    context.close()


def test_loads_without_complaints_and_without_the_network(page: Any, report: Path):
    assert page.complaints == []
    assert [url for url in page.requested if not url.startswith(("data:", "blob:"))] == [
        report.as_uri()
    ]
    assert page.locator("figure canvas").count() > 5


def test_toggling_a_method_changes_the_plot(page: Any):
    canvas = page.locator("#plot0")
    before, shown = canvas.screenshot(), page.evaluate(SHOWN)
    page.get_by_role("checkbox", name="Finetune AdamW new").uncheck()
    page.wait_for_timeout(500)
    assert page.evaluate(SHOWN) < shown
    assert canvas.screenshot() != before
    page.get_by_role("button", name="none").click()
    assert page.evaluate(SHOWN) == 0
    page.get_by_role("button", name="all", exact=True).click()
    assert page.evaluate(SHOWN) == shown


def test_zoom_buttons_and_reset(page: Any):
    span = "() => plots.plot0.x_range.end - plots.plot0.x_range.start"
    before = page.evaluate(span)
    page.locator('[data-zoom="plot0"] button').first.click()
    assert page.evaluate(span) == pytest.approx(0.6 * before)
    page.locator('[data-zoom="plot0"] button').last.click()
    page.wait_for_timeout(300)
    assert page.evaluate(span) == pytest.approx(before)


def names(page: Any) -> list[str]:
    return page.locator("#tasks-body th").all_inner_texts()


def test_tasks_sort_search_and_turn_pages(page: Any):
    assert names(page)[:2] == ["word0", "word1"]
    page.get_by_role("button", name="Final", exact=True).click()
    values = [float(v) for v in page.locator("#tasks-body td:nth-child(7)").all_inner_texts()]
    assert values == sorted(values, reverse=True)
    assert page.locator("#tasks-head th:nth-child(7)").get_attribute("aria-sort") == "descending"
    page.get_by_role("button", name="Final ▼").click()
    values = [float(v) for v in page.locator("#tasks-body td:nth-child(7)").all_inner_texts()]
    assert values == sorted(values)
    page.locator("#search").fill("WORD19")
    assert sorted(names(page)) == sorted(["word19", *(f"word19{i}" for i in range(8))])
    assert "9 that match" in page.locator("#tasks-count").inner_text()
    page.locator("#search").fill("")
    page.get_by_role("button", name="Next").click()
    assert "26-50 of 200" in page.locator("#tasks-count").inner_text()


def test_task_named_like_a_script_is_shown_as_text(page: Any):
    page.locator("#search").fill("<")
    assert set(names(page)) == {"<script>alert(1)</script>", "<b>bold</b>"}
    assert page.locator("#tasks-body b").count() == 0


def test_score_matrix_of_another_run_is_shown(page: Any):
    shown = "Object.values(plots).flatMap(p => p.renderers).map(r => r.visible && r.tags[0])"
    assert "heat0" in page.evaluate(shown)
    page.locator("#heat").select_option("1")
    assert "heat1" in page.evaluate(shown)
    assert "heat0" not in page.evaluate(shown)


def test_two_runs_are_compared(page: Any):
    first = page.locator("#compare-body").inner_text()
    assert "A ends better on" in page.locator("#compare-text").inner_text()
    page.locator("#compare-b").select_option("1")
    assert page.locator("#compare-body").inner_text() != first
    assert "equal on 200" in page.locator("#compare-text").inner_text()


def test_works_by_keyboard_alone(page: Any):
    page.locator("#lines input").first.focus()
    shown = page.evaluate(SHOWN)
    page.keyboard.press("Space")
    assert page.evaluate(SHOWN) < shown
    page.locator("#theme").focus()
    page.keyboard.press("Enter")
    assert page.locator("html").get_attribute("data-theme") == "dark"
    controls = "[...document.querySelectorAll('main button, select, input, a')]"
    assert page.evaluate(f"{controls}.filter(e => e.tabIndex < 0).length") == 0


def test_dark_theme_follows_the_system_and_recolours_plots(browser: Any, report: Path):
    context = browser.new_context(color_scheme="dark")
    page = context.new_page()
    page.goto(report.as_uri())
    page.wait_for_selector("html[data-ready]", state="attached", timeout=60_000)
    colour = "() => plots.plot0.below[0].axis_label_text_color"
    dark = page.evaluate(f"({colour})().value ?? ({colour})()")
    page.locator("#theme").click()
    assert page.evaluate(f"({colour})().value ?? ({colour})()") != dark
    context.close()


def test_the_finding_and_its_figure_come_first(page: Any):
    tops = [
        page.locator(place).first.bounding_box()["y"]
        for place in (".notice", ".finding", "#finding-plot canvas", "table.results", "#plot0")
    ]
    assert tops == sorted(tops)
    assert tops[3] < 800  # the table begins on the first screen
    assert page.locator(".finding").inner_text().startswith("MC raises RP for Finetune (")
    assert "1 run diverged" in page.locator(".notice").inner_text()


def shown_metric(page: Any) -> list[str]:
    return page.locator(".metric:visible").evaluate_all("parts => parts.map(p => p.dataset.metric)")


def test_one_metric_at_a_time(page: Any):
    assert shown_metric(page) == ["RP"]
    before = page.locator("#statistics tbody tr:visible").all_inner_texts()
    button = page.locator('.switch button[data-metric="FGT"]')
    assert "forgetting: mean difference" in button.get_attribute("title")
    button.click()
    assert shown_metric(page) == ["FGT"]
    assert button.get_attribute("aria-pressed") == "true"
    assert "Lower is better" in page.locator(".metric:visible").inner_text()
    after = page.locator("#statistics tbody tr:visible").all_inner_texts()
    assert len(after) == len(before) == 3
    assert all("FGT" in row for row in after)


def test_checks_are_folded_until_asked_for(page: Any):
    checks = page.locator("#checks")
    assert checks.locator("li").first.is_hidden()
    assert checks.locator("summary").inner_text() == "3 of 3 checks hold"
    page.locator('#finding a[href="#checks"]').click()
    assert checks.locator("li").first.is_visible()


def test_bands_are_drawn_on_request(page: Any):
    bands = """() => Object.values(plots).flatMap(p => p.renderers)
        .filter(r => r.tags[1] === "band" && r.visible).length"""
    assert page.evaluate(bands) == 0
    page.locator("#bands").check()
    some = page.evaluate(bands)
    assert some > 6
    page.get_by_role("checkbox", name="Finetune AdamW new").uncheck()
    assert 0 < page.evaluate(bands) < some


def test_a_seed_that_diverged_has_its_mark(page: Any):
    assert page.get_by_role("checkbox", name="EWC AdamW new † (1 of 3 diverged)").count() == 1
    assert "†" in page.locator(".metric:visible tr", has_text="EWC").inner_text()
    cross = """() => plots.plot0.renderers.filter(r => r.glyph.marker?.value === "x")
        .map(r => Array.from(r.data_source.data.x))"""
    assert page.evaluate(cross) == [[58]]


def test_labels_stay_in_sight_when_a_table_is_scrolled(page: Any):
    page.set_viewport_size({"width": 390, "height": 844})
    box = page.locator("#statistics .scroll")
    label = box.locator("tbody tr:visible th").first
    before = label.bounding_box()["x"]
    assert box.evaluate("e => { e.scrollLeft = 400; return e.scrollLeft; }") > 50
    assert label.bounding_box()["x"] == pytest.approx(before, abs=1)


def test_opens_on_what_people_compare(page: Any):
    chosen = "id => document.getElementById(id).selectedOptions[0].textContent"
    assert page.evaluate(chosen, "compare-a") == "Finetune AdamW new, mean of 3 seeds"
    assert page.evaluate(chosen, "compare-b") == "Finetune Continual AdamW, mean of 3 seeds"


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 390])
def test_fits_a_phone(browser: Any, report: Path, width: int, scheme: str):
    context = browser.new_context(
        viewport={"width": width, "height": 740},
        has_touch=True,
        is_mobile=True,
        color_scheme=scheme,
    )
    page = context.new_page()
    page.goto(report.as_uri())
    page.wait_for_selector("html[data-ready]", state="attached", timeout=60_000)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.evaluate("plots.plot0.toolbar.active_drag") is None
    for cell in page.locator(".metric:visible td").all():  # every number is on the screen
        place = cell.bounding_box()
        assert place["x"] >= 0
        assert place["x"] + place["width"] <= width
    task = page.locator("#tasks-body th").first.bounding_box()
    assert task["width"] > 60
    assert task["height"] < 60
    context.close()
