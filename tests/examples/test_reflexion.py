"""Reflexion: what a failed trial has taught, in words, is all that the next one sees of it."""

from __future__ import annotations

from typing import Any

import pytest

from langgraph_amc.demo.stand_in import StandIn
from langgraph_amc.tasks import FinishedRun
from langgraph_amc.tasks.loading import load_object, load_reward, load_tasks
from tests.examples.readme import EXAMPLES, commands, compared

FOLDER = EXAMPLES / "reflexion"
AGENT, PIPELINES, STAND_IN = (str(FOLDER / name) for name in ("agent.py", "pipelines.py", "reflexion_stand_in.py"))


async def test_a_trial_sees_the_task_and_the_reflections_and_nothing_else() -> None:
    seen: list[Any] = []

    def decide(messages: Any, rng: Any) -> str:
        seen.append([m.text for m in messages])
        return f"REFLECTION: lesson {len(seen)}" if "failed" in messages[0].text else "PROGRAM: head"

    task = load_tasks(f"{PIPELINES}:tasks")[0]
    output = await load_object(f"{AGENT}:build")(StandIn(decide=decide)).ainvoke(task.input)
    actor = seen[::2]
    shown = task.input["messages"][0]["content"]
    assert len(actor) == load_object(f"{AGENT}:MAX_TRIALS")
    assert actor[0][1:] == [shown]
    assert actor[2][1:] == [shown, "What you learned in earlier trials:\nREFLECTION: lesson 2\nREFLECTION: lesson 4"]
    assert output["reflections"] == [f"REFLECTION: lesson {k}" for k in (2, 4, 6)]


async def test_reflections_help_and_hidden_examples_decide() -> None:
    build, decide = load_object(f"{AGENT}:build"), load_object(f"{STAND_IN}:decide")
    solved = load_reward(f"{PIPELINES}:solved")
    app = build(StandIn(decide=decide, seed=1))
    first = last = 0.0
    for task in load_tasks(f"{PIPELINES}:tasks", test=12):
        output = await app.ainvoke(task.input)
        said = output["messages"]
        first += solved(FinishedRun(task, {}, tuple(said[:2])))
        last += solved(FinishedRun(task, output, tuple(said)))
        assert said[-1].text.startswith("passed ")
    assert first < last


@pytest.mark.parametrize(
    ("text", "program"),
    [
        ("PROGRAM: reverse | next", ("reverse", "next")),
        ("I think\nPROGRAM: head", ("head",)),
        ("PROGRAM: upside_down", None),
        ("PROGRAM: head | head | head | head", None),
        ("reverse", None),
    ],
)
def test_programs_are_read(text: str, program: Any) -> None:
    assert load_object(f"{PIPELINES}:find_program")(text) == program


def test_tasks_show_one_example_of_those_that_count() -> None:
    run, failures = load_object(f"{PIPELINES}:run_program"), load_object(f"{PIPELINES}:failures")
    assert run(("reverse", "double", "head"), "abc") == "ccbb"
    assert run(("next",), "az") == "ba"
    for task in load_tasks(f"{PIPELINES}:tasks", test=8):
        given = {word for word, _ in task.input["checks"]}
        assert not given & {word for word, _ in task.reference}
        assert task.input["messages"][0]["content"].count("must become") == 1
        wanted = [p for p in load_object(f"{PIPELINES}:programs")() if not failures(p, task.reference)]
        assert wanted


def test_the_value_is_the_share_that_passed() -> None:
    value = load_object(f"{PIPELINES}:passed_so_far")

    def after(*verdicts: str) -> float:
        return value("".join(f"<|im_start|>user\n{verdict}<|im_end|>\n" for verdict in verdicts))

    assert after("passed 6 of 6") == 0.95
    assert after("passed 4 of 6; no") > after("passed 1 of 6; no") > after("passed 1 of 6; no", "passed 0 of 6; no")


@pytest.mark.parametrize("words", commands("reflexion"))
def test_readme_runs(words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    arms = compared(words, monkeypatch, "--limit", "5")["arms"]
    assert arms["one run"]["observable"]["mean"] < arms["AMC"]["observable"]["mean"]
