"""The page in a real browser: no error, nothing loaded, no text that acts; tree, tooltips, keyboard, themes, widths.

pytest -m browser tests/report
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

import langgraph_amc as amc
from langgraph_amc.report.page import to_html
from langgraph_amc.report.run import run_report
from langgraph_amc.report.sections import Genealogy, Report
from langgraph_amc.report.sources import of_folder
from tests.report import world
from tests.report.conftest import Told
from tests.report.test_documents import evolution

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    program = shutil.which("chromium") or shutil.which("google-chrome")
    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield opened
        opened.close()


@dataclass
class Opened:
    """A page, and what it complained of or asked the network for."""

    page: Page
    complaints: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)


@pytest.fixture
def open_page(browser: Browser, tmp_path: Path) -> Iterator[Any]:
    contexts = []

    def opened(report: Report, width: int = 1280, height: int = 900, **options: Any) -> Opened:
        file = tmp_path / "report.html"
        file.write_text(to_html(report), encoding="utf-8")
        context = browser.new_context(viewport={"width": width, "height": height}, **options)
        contexts.append(context)
        found = Opened(context.new_page())
        found.page.on("console", lambda message: found.complaints.append(f"{message.type}: {message.text}"))
        found.page.on("pageerror", lambda error: found.complaints.append(str(error)))
        found.page.on("request", lambda request: found.requests.append(request.url))
        found.page.goto(file.as_uri())
        found.page.wait_for_selector("html[data-ready=yes]")
        found.page.wait_for_selector(".tree, .chart svg, .forest")
        return found

    yield opened
    for context in contexts:
        context.close()


def tree_of(report: Report) -> Genealogy:
    (tree,) = [s for s in report.sections if isinstance(s, Genealogy)]
    return tree


def test_it_opens_without_an_error_and_asks_nobody(told: Told, open_page: Any) -> None:
    opened = open_page(told.report)
    assert opened.complaints == []
    assert [url for url in opened.requests if not url.startswith("file:")] == []
    assert opened.page.title() == told.report.title, "no text has run as a script"
    assert opened.page.locator("#sections > section").count() == len(told.report.sections)
    for chart in opened.page.locator(".chart").all():
        assert chart.locator("svg").count() == 1


def test_no_text_acts_when_it_is_shown(told: Told, open_page: Any) -> None:
    page = open_page(told.report).page
    for details in page.locator("details > summary").all():
        details.click()
    shown = page.locator("body").inner_text()
    assert "</script><script>document.title='owned'</script>" in shown
    assert page.title() == told.report.title
    assert page.locator("img").count() == 0


def test_a_click_shows_the_step(told: Told, open_page: Any) -> None:
    page = open_page(told.report).page
    tree = tree_of(told.report)
    state = next(s for s in tree.states if s.fate == "pruned")
    page.locator(f".nodes > g >> nth={tree.states.index(state)}").click(force=True)
    told_of = page.locator(".detail").inner_text()
    assert f"{state.particle}, step {state.step}" in told_of
    assert state.why in told_of
    assert "pruned" in told_of
    assert "found " in told_of, "what the tool gave"
    page.get_by_text("What the agent saw before this step").click()
    page.locator(".detail details[open] .turn").first.wait_for()
    assert "Dig for treasure" in page.locator(".detail").inner_text()
    page.get_by_role("button", name="step before").click()
    assert f"step {state.step - 1}" in page.locator(".detail h3").inner_text() or state.step == 1


def test_pointing_shows_a_tooltip_and_leaving_hides_it(told: Told, open_page: Any) -> None:
    page = open_page(told.report).page
    assert not page.locator("#tip").is_visible()
    page.locator(".nodes > g >> nth=3").hover(force=True)
    assert "weight" in page.locator("#tip").inner_text()
    page.keyboard.press("Escape")
    assert not page.locator("#tip").is_visible()


def test_keys_walk_the_tree(told: Told, open_page: Any) -> None:
    page = open_page(told.report).page
    tree = page.locator(".tree")
    tree.focus()
    title = page.locator(".detail h3")
    steps = len(told.result.winner.trajectory.segments) - 1
    assert title.inner_text() == f"{told.result.winner.name}, step {steps}"
    page.keyboard.press("ArrowLeft")
    assert title.inner_text().endswith(f"step {steps - 1}")
    page.keyboard.press("Home")
    assert title.inner_text().endswith("start")
    page.keyboard.press("ArrowDown")
    below = title.inner_text()
    page.keyboard.press("ArrowUp")
    assert title.inner_text() != below
    page.keyboard.press("End")
    assert title.inner_text() == f"{told.result.winner.name}, step {steps}"
    chosen = page.locator(f"#{tree.get_attribute('aria-activedescendant')}")
    assert chosen.get_attribute("aria-selected") == "true"
    assert "selected" in chosen.get_attribute("aria-label")


def test_everything_can_be_reached_with_the_keyboard(told: Told, open_page: Any) -> None:
    page = open_page(told.report).page
    seen = set()
    for _ in range(120):
        page.keyboard.press("Tab")
        seen.add(page.evaluate("document.activeElement.getAttribute('class') || document.activeElement.tagName"))
    assert {"skip", "tree", "A", "SUMMARY", "BUTTON", "table"} <= seen


def test_tables_can_be_sorted(told: Told, open_page: Any) -> None:
    page = open_page(told.report).page
    page.get_by_role("button", name="tokens", exact=True).click()
    column = page.locator(".kind-table").first.locator("tbody tr td:nth-child(8)")
    head = page.locator(".kind-table").first.locator("th[aria-sort]")
    assert head.get_attribute("aria-sort") == "ascending"
    assert column.count() > 8


CONTRAST = """() => {
  const part = (v) => ((v /= 255) <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
  const light = ([r, g, b]) => 0.2126 * part(r) + 0.7152 * part(g) + 0.0722 * part(b);
  const parts = (text) => (text.match(/[\\d.]+/g) || []).map(Number);
  const behind = (el) => {
    for (; el; el = el.parentElement) {
      const c = parts(getComputedStyle(el).backgroundColor);
      if (c.length === 3 || c[3] === 1) return c.slice(0, 3);
    }
    return [255, 255, 255];
  };
  const bad = new Set(), walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const text = walker.currentNode.textContent.trim(), el = walker.currentNode.parentElement;
    if (!text || !el.checkVisibility() || el.closest("script, style, button:disabled, #tip")) continue;
    const ink = parts(getComputedStyle(el)[el.closest("svg") ? "fill" : "color"]).slice(0, 3);
    const [a, b] = [light(ink), light(behind(el))].sort((x, y) => y - x);
    if ((a + 0.05) / (b + 0.05) < 4.5) bad.add(`${el.tagName}.${el.className}: ${text.slice(0, 30)}`);
  }
  return [...bad];
}"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_has_contrast(told: Told, open_page: Any, scheme: str) -> None:
    page = open_page(told.report, color_scheme=scheme).page
    for summary in page.locator("details > summary").all():
        summary.click()
    assert page.evaluate(CONTRAST) == []
    dark = page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(16, 19, 26)"
    assert dark == (scheme == "dark")


@pytest.mark.parametrize("width", [320, 380, 768])
def test_nothing_is_wider_than_a_phone(told: Told, open_page: Any, width: int) -> None:
    page = open_page(told.report, width=width, height=760).page
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.locator(".detail").is_visible()


def test_lines_of_the_tree_carry_the_names_of_their_particles(told: Told, open_page: Any) -> None:
    page = open_page(told.report).page
    names = page.locator(".tree .names text").all_text_contents()
    assert sorted(names) == sorted(branch.name for branch in tree_of(told.report).branches)
    assert page.locator(".tree .names .chosen").last.text_content() == told.result.winner.name


def test_words_stay_whole_in_tables_on_a_phone(told: Told, open_page: Any) -> None:
    page = open_page(told.report, width=380, height=760).page
    cells = [cell for cell in page.locator("td").all() if cell.inner_text() in ("finished", "pruned", "failed")]
    lines = [
        cell.evaluate(
            "(c) => { const r = document.createRange(); r.selectNodeContents(c); return r.getClientRects().length }"
        )
        for cell in cells
    ]
    assert lines
    assert set(lines) == {1}


def test_it_prints(told: Told, open_page: Any, tmp_path: Path) -> None:
    page = open_page(told.report).page
    page.emulate_media(media="print")
    assert not page.locator("nav").is_visible()
    assert page.evaluate("document.querySelector('.tree').getBoundingClientRect().width") <= 1280
    assert page.pdf().startswith(b"%PDF")


def test_a_large_run_is_there_at_once(open_page: Any) -> None:
    output = world.run(rounds=50, particles=64, resample=amc.every(5), effects="pure", reward=None)
    report = run_report(output.amc)
    assert len(tree_of(report).states) > 3000
    began = time.monotonic()
    opened = open_page(report)
    took = time.monotonic() - began
    assert opened.complaints == []
    assert took < 5
    opened.page.locator(".tree").focus()
    began = time.monotonic()
    for _ in range(10):
        opened.page.keyboard.press("ArrowLeft")
    assert time.monotonic() - began < 2


def test_other_reports_open_too(told: Told, open_page: Any, tmp_path: Path) -> None:
    (tmp_path / "result.json").write_text(json.dumps(evolution().to_json()))
    opened = open_page(of_folder(tmp_path))
    assert opened.complaints == []
    assert opened.page.locator(".chart svg").count() >= 3
    assert opened.page.locator(".forest .estimate").count() == 3
