"""One file, nothing from outside, no markup from anybody's text, small enough; and the same data as the record."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

import langgraph_amc as amc
from langgraph_amc.errors import ConfigurationError
from langgraph_amc.report.page import TEXT, embedded, longest, to_html
from langgraph_amc.report.run import run_report
from langgraph_amc.report.sections import Fact, Genealogy, Report
from tests.report import world
from tests.report.conftest import Told


class Elements(HTMLParser):
    """The elements of a page, with their attributes, and the text of scripts and styles."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.raw: dict[str, list[str]] = {"script": [], "style": []}
        self.text = ""
        self._in = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._in = tag
        if tag in self.raw:
            self.raw[tag].append("")

    def handle_endtag(self, tag: str) -> None:
        self._in = ""

    def handle_data(self, data: str) -> None:
        if self._in in self.raw:
            self.raw[self._in][-1] += data
        else:
            self.text += data


@pytest.fixture(scope="module")
def page(told: Told) -> str:
    return to_html(told.report)


def test_no_text_becomes_markup(told: Told, page: str) -> None:
    found = Elements(page)
    assert page.count("owned") > 20, "the texts are in there"
    assert not [tag for tag, _ in found.tags if tag in ("img", "svg", "iframe", "object", "link", "base", "form")]
    assert [dict(a) for tag, a in found.tags if tag == "script"] == [{"type": "application/json", "id": "report"}, {}]
    for _, attributes in found.tags:
        assert not [name for name in attributes if name.startswith("on") or name in ("src", "srcdoc", "style")]
        assert not re.match(r"(https?:|//|javascript:|data:)", attributes.get("href") or "")
    data = found.raw["script"][0]
    assert not set("<>&") & set(data)
    assert "document.title='owned'" in found.text, "what was said stands in the page as text"


def test_nothing_can_be_loaded_and_only_the_page_s_own_script_runs(page: str) -> None:
    found = Elements(page)
    policy = next(a["content"] for tag, a in found.tags if a.get("http-equiv") == "Content-Security-Policy")
    assert policy is not None
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    assert rules["default-src"] == "'none'"
    for kind, text in (("script-src", found.raw["script"][1]), ("style-src", found.raw["style"][0])):
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert rules[kind] == f"'sha256-{digest}'"
    assert not re.search(
        r"\b(eval|innerHTML|outerHTML|insertAdjacentHTML|document\.write|fetch|XMLHttpRequest)\b", page
    )


def test_the_page_holds_the_data_of_the_report(told: Told, page: str) -> None:
    inside = json.loads(Elements(page).raw["script"][0])
    whole = told.report.to_json()
    assert inside["sections"] == whole["sections"]
    assert {"answer", "warnings", "facts"}.isdisjoint(inside), "these stand in the page itself"
    text = Elements(page).text
    for fact in told.report.answer:
        assert fact.text.split("\u2028")[0] in text
    json.dumps(whole, allow_nan=False)
    assert whole["format"] == 1


def test_a_page_of_16_particles_and_30_steps_is_small() -> None:
    output = world.run(rounds=30, particles=16, resample=amc.every(3), effects="pure", reward=None)
    report = run_report(output.amc)
    (tree,) = [s for s in report.sections if isinstance(s, Genealogy)]
    assert len(tree.states) >= 16 * 30
    assert len(to_html(report).encode()) < 2_000_000


def long_texts(report: Report, length: int) -> Report:
    def grown(section: Any) -> Any:
        if not isinstance(section, Genealogy):
            return section
        return replace(section, states=tuple(replace(s, text=s.text + "x" * length) for s in section.states))

    return replace(report, sections=tuple(map(grown, report.sections)))


def test_long_texts_are_cut_in_the_page_and_whole_in_the_data(told: Told, tmp_path: Path) -> None:
    report = long_texts(told.report, 40_000)
    page = to_html(report)
    assert len(page.encode()) < 2_000_000
    assert "characters are left out here" in page
    file = amc.write_report(report, tmp_path / "deep" / "report.json")
    assert json.loads(file.read_text()) == report.to_json()


def test_the_longest_texts_are_cut_first() -> None:
    assert longest([10, 20, 30], 1000) == 30
    assert longest([10, 1000, 2000], 1010) == 500
    assert longest([10_000] * 10, 20_000) == 2000
    assert longest([], 5) == 0
    assert sum(min(n, longest([500, 90_000, 4_000_000], TEXT)) for n in (500, 90_000, 4_000_000)) <= TEXT


def test_lone_surrogates_and_control_characters_do_no_harm() -> None:
    nasty = "\ud800 \x00 \x1b[31m \u2029 </title>"
    report = Report("about", nasty, (Fact("x", nasty),), (), warnings=(nasty,))
    page = to_html(report).encode("utf-8").decode()
    assert json.loads(Elements(page).raw["script"][0])["title"] == nasty
    assert json.loads(embedded(report))["title"] == nasty


def test_files(told: Told, tmp_path: Path) -> None:
    page = amc.write_report(told.result, tmp_path / "a.html")
    assert page.read_text() == to_html(told.report)
    with pytest.raises(ConfigurationError, match=r"ends in \.html or \.json"):
        amc.write_report(told.result, tmp_path / "a.pdf")
    with pytest.raises(ConfigurationError, match="no report of a dict"):
        amc.write_report({}, tmp_path / "a.html")  # type: ignore[arg-type]
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigurationError, match="cannot be written"):
        amc.write_report(told.result, tmp_path / "file" / "a.html")
