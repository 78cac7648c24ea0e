"""The view of a run of evolution: progress, curve and table in a terminal, a line per generation elsewhere."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from langgraph_amc.evaluate.evolving import Standing
from langgraph_amc.live.evolution import SHOWN, Course
from tests.report.test_documents import evolution


def told(done: int) -> Standing:
    whole = evolution()
    generation = whole.generations[done - 1] if done else None
    validation = whole.validations[-1 if done == 4 else 0]
    return Standing(f"generation {done + 1}", 3, 16, 8, generation, validation, 1000 * done, 60.0 if done else None)


def drawn(course: Course, width: int) -> str:
    console = Console(width=width, file=io.StringIO(), color_system=None, force_terminal=True)
    console.print(course.picture(width))
    text = str(console.file.getvalue())  # type: ignore[attr-defined]
    assert all(len(line.rstrip()) <= width for line in text.splitlines())
    return text


@pytest.mark.parametrize("width", [80, 140])
def test_generations_come_in(width: int) -> None:
    course = Course()
    assert drawn(course, width).strip() == "starting"
    news = [course.hear(told(done)) for done in (0, 1, 1, 2, 3, 4)]
    assert news == [False, True, False, True, True, True]
    text = drawn(course, width)
    assert "generation 4/8" in text
    assert "3/16" in text
    assert "best validation 0.400 after 4" in text
    rows = [line.split() for line in text.splitlines() if line.strip()[:1].isdigit()]
    assert [row[0] for row in rows] == ["1", "2", "3", "4"]
    assert rows[1][1:3] == ["0.250", "0.150–0.350"]
    assert len(rows) <= SHOWN
    assert course.line().startswith("generation 4/8: reward 0.350 [0.250, 0.450] best 0.600")
    assert course.line().endswith("4,000 tokens · 1:00 left")
