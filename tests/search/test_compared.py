"""Searches as rows of a comparison, and by their names."""

from __future__ import annotations

import pytest
from rich.console import Console

import langgraph_amc as amc
from langgraph_amc.errors import ConfigurationError
from langgraph_amc.evaluate.compare import AMC, BEST_OF_N, compare
from langgraph_amc.evaluate.report import print_comparisons
from langgraph_amc.report.comparison import comparison_report
from langgraph_amc.runtime.settings import read_settings
from langgraph_amc.search import beam, bfs, dfs, foa, mcts, parse_searches
from langgraph_amc.tasks import as_reward
from tests.evaluate.test_compare import TASKS, build, sees_slips, unbroken


async def test_searches_are_compared_on_the_same_tasks(capsys: pytest.CaptureFixture[str]) -> None:
    app = build()
    settings = read_settings(app, particles=4, value=sees_slips, resample=amc.every(1))
    methods = parse_searches("bfs(4, 2), mcts(2, thoughts=24), foa(4, 1)")
    found = await compare(app, TASKS[:8], as_reward(unbroken), settings, same_tokens=False, methods=methods)
    arms = {arm.name: arm for arm in found.arms}
    assert list(arms)[-3:] == list(methods) == list(found.differences)
    # V sees every mistake: who follows nothing else solves no less than independent runs do
    assert arms["bfs(4, 2)"].selected.mean >= arms[BEST_OF_N].selected.mean
    for name in methods:
        assert arms[name].tokens > 0
        assert arms[name].selected.mean == arms[name].observable.mean
        gap = arms[AMC].selected.mean - arms[name].selected.mean
        assert found.differences[name].selected.mean == pytest.approx(gap)
    print_comparisons([found], Console(width=80))
    printed = capsys.readouterr().out
    assert "…" not in printed
    assert "AMC − bfs(4, 2), not observable" in printed
    assert "mcts(2, thoughts=24)" in str(comparison_report([found.to_json()]))


async def test_what_cannot_be_compared() -> None:
    app = build()
    settings = read_settings(app, particles=4, value=sees_slips)
    with pytest.raises(ConfigurationError, match="another row"):
        await compare(app, TASKS[:1], as_reward(unbroken), settings, methods={"AMC": bfs()})
    searching = read_settings(app, value=sees_slips, search=bfs())
    with pytest.raises(ConfigurationError, match="as methods"):
        await compare(app, TASKS[:1], as_reward(unbroken), searching)


def test_by_their_names() -> None:
    text = "bfs, dfs(2, threshold=0.25), beam(4, 2), mcts(3, thoughts=90, backup='max'), foa"
    assert parse_searches(text) == {
        "bfs": bfs(),
        "dfs(2, threshold=0.25)": dfs(2, 0.25),
        "beam(4, 2)": beam(4, 2),
        "mcts(3, thoughts=90, backup='max')": mcts(3, 90, backup="max"),
        "foa": foa(),
    }
    assert parse_searches("mcts(evaluate='rollout')") == {"mcts(evaluate='rollout')": mcts(evaluate="rollout")}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "amc",
        "bfs(",
        "bfs(*[1])",
        "__import__('os')",
        "bfs(open('x'))",
        "bfs(thoughts=1)",
        "mcts(1, 2, 3)",
        "bfs; dfs",
    ],
)
def test_what_names_no_search(text: str) -> None:
    with pytest.raises(ConfigurationError):
        parse_searches(text)
