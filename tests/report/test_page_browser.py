"""The page in a real browser. Needs Chromium and playwright; without them the tests are skipped."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from helpers.made_up_runs import config, identity, write_study
from longtail.report import read
from longtail.report.command import write

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
# Marks that a view draws, lines and points: a page whose policy keeps Vega from working has none.
MARKS = """id => {
  let count = 0;
  const visit = (item) => { count += 1; (item.items ?? []).forEach(visit); };
  visit(plots[id].scenegraph().root);
  return count;
}"""


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("study")
    names = [f"word{i}" for i in range(198)] + ["<script>alert(1)</script>", "<b>bold</b>"]
    write_study(folder, tasks=200, every=20, names=names)
    lost = folder / "runs" / identity(config("ewc", "new", 1)) / "summary.json"
    lost.write_text(json.dumps({**json.loads(lost.read_text()), "diverged_at": 57}))
    return write(read(folder), folder, with_figures=False)["page"]


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


def test_every_figure_draws_its_marks_under_the_pages_policy(page: Any):
    figures = page.evaluate("Object.keys(plots)")
    assert {"finding-0", "rp_by_tasks-0", "plane-0"} <= set(figures)
    for name in figures:
        assert page.evaluate(MARKS, name) > 30, name


def test_a_click_in_the_legend_shows_one_line_alone(page: Any):
    canvas = page.locator("#rp_by_tasks-0 canvas")
    before = canvas.screenshot()
    where = page.evaluate("""() => {
      let found = null;
      const visit = (item, x, y) => {
        x += item.x ?? 0; y += item.y ?? 0;
        if (item.text === "EWC Continual AdamW") found = [x, y];
        (item.items ?? []).forEach((child) => visit(child, x, y));
      };
      visit(plots["rp_by_tasks-0"].scenegraph().root, 0, 0);
      const [left, top] = plots["rp_by_tasks-0"].origin();
      return [found[0] + left + 4, found[1] + top];
    }""")
    canvas.click(position={"x": where[0], "y": where[1]})
    page.wait_for_timeout(300)
    assert page.evaluate('plots["rp_by_tasks-0"].signal("alone").line') == ["EWC Continual AdamW"]
    assert canvas.screenshot() != before


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


def test_works_by_keyboard_alone(page: Any):
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
    canvas = page.locator("#rp_by_tasks-0 canvas")
    dark = canvas.screenshot()
    page.locator("#theme").click()
    page.wait_for_timeout(2000)
    assert canvas.screenshot() != dark
    context.close()


def test_the_finding_and_its_figure_come_first(page: Any):
    tops = [
        page.locator(place).first.bounding_box()["y"]
        for place in (".notice", ".finding", "#finding-0 canvas", "table.results", "#rp_by_tasks-0")
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


def test_a_seed_that_diverged_has_its_mark(page: Any):
    assert "†" in page.locator(".metric:visible tr", has_text="EWC").inner_text()
    assert page.evaluate('tables["rp_by_tasks 0 marks"].x') == [58]


def test_labels_stay_in_sight_when_a_table_is_scrolled(page: Any):
    page.set_viewport_size({"width": 390, "height": 844})
    box = page.locator("#statistics .scroll")
    label = box.locator("tbody tr:visible th").first
    before = label.bounding_box()["x"]
    assert box.evaluate("e => { e.scrollLeft = 400; return e.scrollLeft; }") > 50
    assert label.bounding_box()["x"] == pytest.approx(before, abs=1)


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
    for cell in page.locator(".metric:visible td").all():  # every number is on the screen
        place = cell.bounding_box()
        assert place["x"] >= 0
        assert place["x"] + place["width"] <= width
    task = page.locator("#tasks-body th").first.bounding_box()
    assert task["width"] > 60
    assert task["height"] < 60
    context.close()
