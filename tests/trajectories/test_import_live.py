"""Logs of apps that run: what is imported is what a live run recorded, and a V trained on it serves the app."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.tools import tool
from langchain_core.tracers.run_collector import RunCollectorCallbackHandler
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.sqlite import SqliteSaver
from typer import Typer
from typer.testing import CliRunner

import langgraph_amc as amc
from langgraph_amc.cli.importing import import_logs as command
from langgraph_amc.evaluate.importing import import_logs
from langgraph_amc.trajectories import Trajectory, TrajectoryStore, Transcript
from langgraph_amc.trajectories.importers import ImportFileError
from langgraph_amc.value import FingerprintMismatch, load_value, train_value
from tests.support.cases import AGENTS, CASES, Case, FunctionModel
from tests.support.graphs import _again, _ask
from tests.support.nested_graphs import worker, worker_as_tool
from tests.support.tiny_models import save_tiny

APPS: dict[str, Case] = {
    **AGENTS,
    "create_agent": CASES["create_agent"],
    "message_loop": CASES["message_loop"],
    "subgraph": Case(worker, (_ask, _again)),
    "agent_as_tool": Case(worker_as_tool, (_ask, _again)),
}
BY_CHECKPOINTS = ["create_agent", "message_loop", "tool_limit", "human_in_the_loop", "todo", "create_react_agent"]


def dumped(run: Any) -> dict[str, Any]:
    """A run with its children as LangSmith's client writes it."""
    names = ("id", "trace_id", "parent_run_id", "name", "run_type", "start_time", "end_time", "inputs", "outputs")
    return {
        **{name: getattr(run, name) for name in (*names, "error", "extra")},
        "child_runs": [dumped(child) for child in run.child_runs],
    }


def plain(value: Any) -> Any:
    if hasattr(value, "model_dump"):
        return value.model_dump(mode="json")
    if hasattr(value, "isoformat"):
        return value.isoformat()
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
    return str(value)


def live(case: Case, saver: Any, log: Path | None = None) -> list[Trajectory]:
    """The trajectory of each turn, one particle each; ``log`` gets the runs."""
    app = amc.wrap(case.build(saver), particles=1, resample=amc.every(1))
    found, logged = [], []
    for given in case.inputs:
        collector = RunCollectorCallbackHandler()
        app.invoke(given, {"configurable": {"thread_id": "t"}, "callbacks": [collector]})
        found.append(amc.last_run(app).winner.trajectory)
        logged += [json.dumps(dumped(run), default=plain) + "\n" for run in collector.traced_runs]
    if log is not None:
        log.write_text("".join(logged), encoding="utf-8")
    return found


def facts(trajectories: Sequence[Trajectory]) -> list[tuple[Any, ...]]:
    return [(t.segments, t.rewards, t.status, t.usage, t.error, t.fingerprint) for t in trajectories]


@pytest.mark.parametrize("name", APPS)
def test_logged_runs_are_what_a_live_run_records(name: str, tmp_path: Path) -> None:
    expected = live(APPS[name], InMemorySaver(), tmp_path / "runs.jsonl")
    with TrajectoryStore(tmp_path / "store.sqlite") as store:
        import_logs(store, tmp_path / "runs.jsonl")
        assert facts(list(store.trajectories())) == facts(expected)


@pytest.mark.parametrize("name", BY_CHECKPOINTS)
def test_checkpoints_too(name: str, tmp_path: Path) -> None:
    saver = InMemorySaver()
    expected = live(APPS[name], saver)
    with TrajectoryStore(tmp_path / "store.sqlite") as store:
        import_logs(store, saver)
        found = list(store.trajectories())
    assert [(t.segments, t.rewards, t.status) for t in found] == [(t.segments, t.rewards, t.status) for t in expected]
    assert [t.usage.tokens for t in found] == [t.usage.tokens for t in expected]


# -- a service, its logs, its V ----------------------------------------------------------------------


@tool(response_format="content_and_artifact")
def measure(depth: int) -> tuple[str, dict[str, float]]:
    """Measure at a depth."""
    if depth == 13:
        raise RuntimeError("the probe is lost")
    return f"{depth * 3} bar", {"reward": 0.125}


def reply(messages: list[BaseMessage]) -> AIMessage:
    """Measures once and answers; a depth of 13 breaks the tool."""
    used = {"input_tokens": 7 * len(messages), "output_tokens": 3, "total_tokens": 7 * len(messages) + 3}
    if messages[-1].type == "tool":
        return AIMessage(f"The pressure is {messages[-1].content}.", usage_metadata=used)
    depth = int(str(messages[-1].content).split()[-1])
    calls = [{"name": "measure", "args": {"depth": depth}, "id": f"call-{len(messages)}"}]
    return AIMessage("", tool_calls=calls, usage_metadata=used)


def service(saver: Any = None) -> Any:
    return create_agent(FunctionModel(reply=reply), [measure], system_prompt="Be exact.", checkpointer=saver)


def served(saver: Any) -> None:
    """Four threads of production: two turns, one turn each, and one that breaks."""
    app = service(saver)
    for thread, depths in {"a": (1, 2), "b": (3,), "c": (4,), "d": (13,)}.items():
        for depth in depths:
            try:
                app.invoke({"messages": [("user", f"depth {depth}")]}, {"configurable": {"thread_id": thread}})
            except RuntimeError:
                assert thread == "d"


def test_one_trajectory_per_invocation_of_every_thread(tmp_path: Path) -> None:
    saver = InMemorySaver()
    served(saver)
    with TrajectoryStore(tmp_path / "store.sqlite") as store:
        report = import_logs(store, saver, rewards={"a": 1.0, "b": 0.0})
        found = {t.run_id: t for t in store.trajectories()}
    outcomes = {"a:0": None, "a:1": 1.0, "b:0": 0.0, "c:0": None, "d:0": 0.0}
    assert {name: t.outcome for name, t in found.items()} == outcomes
    assert found["a:1"].segments[0].startswith("".join(found["a:0"].segments))
    assert found["a:1"].rewards == (0.125, 0.0)
    assert found["d:0"].status == "failed"
    assert found["d:0"].error == "RuntimeError: the probe is lost"
    assert found["d:0"].usage.tokens == 17
    assert (report.judged, report.unjudged, report.failed) == (3, 2, 1)


def test_the_file_of_a_sqlite_checkpointer(tmp_path: Path) -> None:
    path = tmp_path / "checkpoints.sqlite"
    with SqliteSaver.from_conn_string(str(path)) as saver:
        served(saver)
        with TrajectoryStore(tmp_path / "a.sqlite") as store:
            import_logs(store, saver)
            expected = list(store.trajectories())
    assert len(expected) == 5
    with TrajectoryStore(tmp_path / "b.sqlite") as store:
        import_logs(store, path, format="checkpoints")
        assert list(store.trajectories()) == expected
        with pytest.raises(ImportFileError, match="SqliteSaver"):
            import_logs(store, tmp_path / "a.sqlite", format="checkpoints")
        with pytest.raises(ImportFileError, match="no such file"):
            import_logs(store, tmp_path / "none.sqlite", format="checkpoints")


def test_a_run_that_was_left_is_still_running(tmp_path: Path) -> None:
    saver = InMemorySaver()
    app = service(saver)
    config = {"configurable": {"thread_id": "t"}}
    for _ in app.stream({"messages": [("user", "depth 1")]}, config, interrupt_before=["tools"]):
        pass
    with TrajectoryStore(tmp_path / "store.sqlite") as store:
        report = import_logs(store, saver)
    assert [(left.reason, left.example) for left in report.left_out] == [("still running", "t:0")]


def test_a_value_function_from_logs_alone_serves_the_app(tmp_path: Path) -> None:
    log = tmp_path / "runs.jsonl"
    lines = []
    for depth in range(1, 13):
        collector = RunCollectorCallbackHandler()
        service().invoke({"messages": [("user", f"depth {depth}")]}, {"callbacks": [collector]})
        (run,) = collector.traced_runs
        lines.append({**dumped(run), "feedback": [{"key": "ok", "score": depth % 2}]})
    log.write_text("".join(json.dumps(line, default=plain) + "\n" for line in lines), encoding="utf-8")
    with TrajectoryStore(tmp_path / "store.sqlite") as store:
        report = import_logs(store, log, feedback="ok")
        imported = list(store.trajectories())
    assert (report.imported, report.judged, report.mean_return) == (12, 12, 0.625)
    base = save_tiny(tmp_path / "base")
    train_value(imported, base, out=tmp_path / "value", loss="mse", epochs=2, lora=False)

    app = amc.wrap(service(), particles=2, value=tmp_path / "value", resample=amc.every(1))
    app.invoke({"messages": [("user", "depth 5")]})
    run = amc.last_run(app).winner.trajectory
    logged = imported[4]
    assert run.segments == logged.segments
    model = load_value(tmp_path / "value")
    states = [logged.segments[: t + 1] for t in range(len(logged.segments))]
    scored = {t: v for t, v in enumerate(run.values) if v is not None}
    assert scored
    for t, score in enumerate(model.score(states)):
        if t in scored:
            assert scored[t] == pytest.approx(score, abs=1e-5)
    with pytest.raises(FingerprintMismatch):
        amc.wrap(service(), particles=2, value=tmp_path / "value", transcript=Transcript(max_tool_chars=9)).invoke(
            {"messages": [("user", "depth 5")]}
        )


# -- amc import --------------------------------------------------------------------------------------


def run_command(*words: str) -> Any:
    app = Typer()
    app.command("import")(command)
    app.callback()(lambda: None)
    return CliRunner().invoke(app, ["import", *words], catch_exceptions=True)


def test_the_command(tmp_path: Path) -> None:
    exports = Path(__file__).parent / "exports"
    store = str(tmp_path / "store.sqlite")
    shown = run_command(str(exports / "phoenix.jsonl"), "--feedback", "helpful", "--store", store)
    assert shown.exit_code == 0, shown.output
    assert "3 trajectories imported" in shown.output
    assert "left out: 1 × redacted content" in shown.output
    again = run_command(str(exports / "phoenix.jsonl"), "--format", "phoenix", "--store", store, "--json")
    report = json.loads(again.output)
    assert (report["imported"], report["known"], report["store"]) == (0, 3, store)


def test_its_functions_rewards_and_mistakes(tmp_path: Path) -> None:
    exports = Path(__file__).parent / "exports"
    store = str(tmp_path / "store.sqlite")
    (tmp_path / "read.py").write_text("def half(score):\n    return score / 2\n")
    (tmp_path / "rewards.json").write_text('{"thread-1": 0.25}')
    langfuse = str(exports / "langfuse.json")
    options = ("--feedback", "helpful", "--read-feedback", f"{tmp_path}/read.py:half", "--store", store)
    done = run_command(langfuse, *options, "--rewards", str(tmp_path / "rewards.json"), "--json")
    assert done.exit_code == 0, done.output
    with TrajectoryStore(store) as opened:
        assert [t.outcome for t in opened.trajectories()] == [0.5, 0.25, 0.0]
    (tmp_path / "rewards.json").write_text("[1]")
    for wrong in (("--rewards", str(tmp_path / "rewards.json")), ("--system", "maybe"), ("--format", "xml")):
        failed = run_command(langfuse, *wrong, "--store", store)
        assert isinstance(failed.exception, amc.AMCError), wrong
