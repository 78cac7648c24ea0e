"""Exports of one service, in every format: two turns of a tool-calling agent, a run that broke, one without content."""

from __future__ import annotations

import copy
import gzip
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from langgraph_amc.errors import ConfigurationError
from langgraph_amc.evaluate.import_report import ImportReport
from langgraph_amc.evaluate.importing import import_logs
from langgraph_amc.trajectories import Trajectory, TrajectoryStore, Transcript, Usage
from langgraph_amc.trajectories.importers import ImportFileError

EXPORTS = Path(__file__).parent / "exports"
ALL = sorted(p.name for p in EXPORTS.iterdir())
SCORED = [name for name in ALL if not name.startswith("recorded")]
NO_STATES = [name for name in ALL if "gen_ai" in name]
ASK = "<|im_start|>user\nWeather in Rome?<|im_end|>\n"
CALL = (
    '<|im_start|>assistant\nLet me look.\nweather {"city": "Rome", "unit": "C"}<|im_end|>\n'
    "<|im_start|>tool\nSunny, 24 °C<|im_end|>\n"
)
ANSWER = "<|im_start|>assistant\nIt is sunny in Rome, 24 °C.<|im_end|>\n"
TURN_1 = (ASK, CALL, ANSWER)
TURN_2 = (
    ASK + CALL + ANSWER + "<|im_start|>user\nAnd in Oslo?<|im_end|>\n",
    '<|im_start|>assistant\nweather {"city": "Oslo", "unit": "C"}<|im_end|>\n<|im_start|>tool\nSnow, -3 °C<|im_end|>\n',
    "<|im_start|>assistant\nSnow in Oslo.<|im_end|>\n",
)
BROKEN = (
    "<|im_start|>user\nWeather in Atlantis?<|im_end|>\n",
    '<|im_start|>assistant\nweather {"city": "Atlantis", "unit": "C"}<|im_end|>\n',
)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[TrajectoryStore]:
    with TrajectoryStore(tmp_path / "store.sqlite") as opened:
        yield opened


def reasons(report: ImportReport) -> dict[str, int]:
    return {left.reason: left.count for left in report.left_out}


def notes(report: ImportReport) -> dict[str, int]:
    return {note.reason: note.count for note in report.notes}


def facts(trajectory: Trajectory) -> tuple[Any, ...]:
    """What a trajectory says of the run itself, whoever logged it."""
    t = trajectory
    return t.segments, t.rewards, t.outcome, t.status, t.usage, t.error, t.fingerprint, t.task_id


def lines(name: str) -> list[Any]:
    """The records of an export, whole documents included."""
    text = (EXPORTS / name).read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines()] if name.endswith("jsonl") else [json.loads(text)]


def written(path: Path, records: list[Any]) -> Path:
    path.write_text("".join(json.dumps(r, ensure_ascii=False) + "\n" for r in records), encoding="utf-8")
    return path


@pytest.mark.parametrize("name", SCORED)
def test_every_format_gives_the_same_trajectories(store: TrajectoryStore, name: str) -> None:
    report = import_logs(store, EXPORTS / name, feedback="helpful")
    first, second, broken = store.trajectories()
    assert (first.segments, second.segments, broken.segments) == (TURN_1, TURN_2, BROKEN)
    assert (first.outcome, second.outcome, broken.outcome) == (1.0, None, 0.0)
    assert (first.status, second.status, broken.status) == ("finished", "finished", "failed")
    assert broken.error == "RuntimeError: no such city"
    assert first.usage == Usage(2, 107, 26, None)
    assert second.usage == Usage(2, 213, 16, None)
    assert broken.usage == Usage(1, 40, 11, None)
    assert first.fingerprint == Transcript().fingerprint
    assert (report.imported, report.judged, report.unjudged, report.failed) == (3, 2, 1, 1)
    assert report.mean_return == 0.5
    (lost,) = report.left_out
    assert lost.count == 1
    assert lost.reason in ("no messages", "redacted content")


def test_and_the_same_tasks(tmp_path: Path) -> None:
    found = []
    for name in ALL:
        with TrajectoryStore(tmp_path / f"{name}.sqlite") as store:
            import_logs(store, EXPORTS / name)
            found.append([facts(t) for t in store.trajectories()])
            assert {task["id"] for task in store.tasks()} == {f[-1] for f in found[-1]}
    assert all(one == found[0] for one in found)
    assert len(found[0]) == 3


def test_the_first_input_is_the_task_it_would_be_in_a_task_set(store: TrajectoryStore) -> None:
    from langgraph_amc.tasks import TaskSet

    import_logs(store, EXPORTS / "langsmith.jsonl", split="production")
    (task,) = TaskSet.from_iterable(["Weather in Rome?"])
    assert next(store.trajectories()).task_id == task.id
    assert {t["split"] for t in store.tasks()} == {"production"}


@pytest.mark.parametrize("name", ALL)
def test_a_second_import_changes_nothing_but_missing_outcomes(store: TrajectoryStore, name: str) -> None:
    import_logs(store, EXPORTS / name, failed=None)
    before = [facts(t) for t in store.trajectories()]
    again = import_logs(store, EXPORTS / name, failed=None)
    assert (again.imported, again.known, again.updated) == (0, 3, 0)
    assert [facts(t) for t in store.trajectories()] == before
    late = import_logs(store, EXPORTS / name)
    assert (late.imported, late.updated) == (0, 1)
    assert [t.outcome for t in store.trajectories()] == [None, None, 0.0]


@pytest.mark.parametrize("name", NO_STATES)
def test_system_prompts_of_model_calls(store: TrajectoryStore, tmp_path: Path, name: str) -> None:
    report = import_logs(store, EXPORTS / name)
    assert notes(report)["system prompts that only model calls show were left out"] == 3
    with TrajectoryStore(tmp_path / "kept.sqlite") as other:
        report = import_logs(other, EXPORTS / name, system="keep")
        assert not any("system" in reason for reason in notes(report))
        rules = "<|im_start|>system\nYou are a travel agent.<|im_end|>\n"
        assert [t.segments[0] for t in other.trajectories()] == [
            rules + TURN_1[0],
            rules + TURN_2[0],
            rules + BROKEN[0],
        ]


def test_a_system_message_in_the_state_stays(store: TrajectoryStore, tmp_path: Path) -> None:
    runs = lines("langsmith.jsonl")
    for run in runs:
        for part in (run["inputs"], run["outputs"]):
            if run["run_type"] == "chain" and isinstance((part or {}).get("messages"), list):
                part["messages"] = [{"type": "system", "content": "Be kind."}, *part["messages"]]
    import_logs(store, written(tmp_path / "runs.jsonl", runs))
    assert next(store.trajectories()).segments[0] == "<|im_start|>system\nBe kind.<|im_end|>\n" + ASK


def test_runs_without_their_parts_are_enough(store: TrajectoryStore, tmp_path: Path) -> None:
    """Exports of root runs only are common; the failed one has no output, so that only its input is known."""
    roots = [run for run in lines("langsmith.jsonl") if run["parent_run_id"] is None]
    report = import_logs(store, written(tmp_path / "roots.jsonl", roots), feedback="helpful")
    first, second, broken = store.trajectories()
    assert (first.segments, second.segments, broken.segments) == (TURN_1, TURN_2, BROKEN[:1])
    assert first.usage == Usage(2, 107, 26, None)
    assert reasons(report) == {"no messages": 1}


def test_traces_without_observations_are_enough(store: TrajectoryStore, tmp_path: Path) -> None:
    traces = [{**t, "observations": [o["id"] for o in t["observations"]]} for t in lines("langfuse.json")[0]]
    import_logs(store, written(tmp_path / "traces.jsonl", [{"data": traces, "meta": {"page": 1}}]), feedback="helpful")
    assert [t.segments for t in store.trajectories()][:2] == [TURN_1, TURN_2]
    assert next(store.trajectories()).outcome == 1.0


def test_langfuse_records_one_by_one(store: TrajectoryStore, tmp_path: Path) -> None:
    records = []
    for trace in lines("langfuse.json")[0]:
        records += [{k: v for k, v in trace.items() if k not in ("observations", "scores")}, *trace["observations"]]
        records += trace["scores"]
    import_logs(store, written(tmp_path / "rows.jsonl", records), feedback="helpful")
    assert [t.segments for t in store.trajectories()] == [TURN_1, TURN_2, BROKEN]
    assert next(store.trajectories()).outcome == 1.0


def test_forms_of_files(store: TrajectoryStore, tmp_path: Path) -> None:
    runs = lines("langsmith.jsonl")
    array = tmp_path / "array.json"
    array.write_text(json.dumps(runs, indent=2))
    packed = tmp_path / "runs.jsonl.gz"
    with gzip.open(packed, "wt") as file:
        file.writelines(json.dumps(run) + "\n\n" for run in runs)
    assert import_logs(store, array).imported == 3
    assert import_logs(store, [packed, EXPORTS / "langsmith.jsonl"]).known == 3


def test_parquet(store: TrajectoryStore, tmp_path: Path) -> None:
    """LangSmith's bulk export has JSON in text columns; a Phoenix data frame has dotted columns."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    plain = ("id", "trace_id", "parent_run_id", "name", "run_type", "status", "error", "start_time", "end_time")
    texts = ("inputs", "outputs", "extra", "feedback_stats")
    runs = [
        {name: run[name] for name in (*plain, "prompt_tokens", "completion_tokens")}
        | {name: None if run[name] is None else json.dumps(run[name]) for name in texts}
        for run in lines("langsmith.jsonl")
    ]
    pq.write_table(pa.Table.from_pylist(runs), tmp_path / "runs.parquet")
    import_logs(store, tmp_path / "runs.parquet", feedback="helpful")
    expected = [facts(t) for t in store.trajectories()]
    assert [f[0] for f in expected] == [TURN_1, TURN_2, BROKEN]
    assert [f[2] for f in expected] == [1.0, None, 0.0]
    spans = [s for s in lines("phoenix.jsonl") if "context" in s]
    frame = [
        {"context.trace_id": s["context"]["trace_id"], "context.span_id": s["context"]["span_id"]}
        | {name: s[name] for name in ("name", "span_kind", "parent_id", "start_time", "end_time", "status_code")}
        | {"events": s["events"], "attributes.metadata": json.dumps(s["attributes"]["metadata"])}
        | {f"attributes.{k}": v for k, v in s["attributes"].items() if k != "metadata"}
        for s in spans
    ]
    pq.write_table(pa.Table.from_pylist(frame), tmp_path / "spans.parquet")
    with TrajectoryStore(tmp_path / "frame.sqlite") as other:
        import_logs(other, tmp_path / "spans.parquet")
        assert [t.segments for t in other.trajectories()] == [TURN_1, TURN_2, BROKEN]


# -- feedback ----------------------------------------------------------------------------------------


def test_labels_need_a_function(store: TrajectoryStore, tmp_path: Path) -> None:
    records = lines("phoenix.jsonl")
    for record in records:
        if "result" in record:
            record["result"] = {"label": "good", "score": None}
    path = written(tmp_path / "spans.jsonl", records)
    report = import_logs(store, path, feedback="helpful")
    assert next(store.trajectories()).outcome is None
    assert "feedback that is no number: give read_feedback" in notes(report)
    import_logs(store, path, feedback="helpful", read_feedback={"good": 0.75}.get)
    assert next(store.trajectories()).outcome == 0.75


def test_a_function_that_fails_leaves_it_missing(store: TrajectoryStore) -> None:
    report = import_logs(store, EXPORTS / "phoenix.jsonl", feedback="helpful", read_feedback=lambda label: label["x"])
    assert next(store.trajectories()).outcome is None
    assert notes(report)["feedback that read_feedback failed on (TypeError)"] == 1


@pytest.mark.parametrize("name", SCORED)
def test_a_name_nobody_gave_is_said(store: TrajectoryStore, name: str) -> None:
    report = import_logs(store, EXPORTS / name, feedback="helpfull")
    assert "no feedback 'helpfull'; there is 'helpful'" in notes(report)
    assert report.judged == 1  # the failure


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), "1", [1]])
def test_feedback_that_is_no_number_is_missing(store: TrajectoryStore, tmp_path: Path, bad: Any) -> None:
    runs = lines("langsmith.jsonl")
    for run in runs:
        if run["feedback_stats"]:
            run["feedback_stats"] = None
            run["feedback"] = [{"key": "helpful", "score": bad}]
    report = import_logs(store, written(tmp_path / "runs.jsonl", runs), feedback="helpful")
    assert next(store.trajectories()).outcome is None
    assert any(reason.startswith("feedback that is") for reason in notes(report))


def test_several_scores_are_averaged_and_the_whole_goes_before_its_parts(
    store: TrajectoryStore, tmp_path: Path
) -> None:
    runs = lines("langsmith.jsonl")
    first, second = [run for run in runs if run["parent_run_id"] is None][:2]
    part = next(run for run in runs if run["parent_run_id"] == second["id"])
    inner = next(run for run in runs if run["parent_run_id"] == first["id"])
    given = [
        {"id": "f1", "run_id": first["id"], "key": "stars", "score": 0.0},
        {"id": "f2", "run_id": first["id"], "key": "stars", "score": True},
        {"id": "f3", "run_id": inner["id"], "key": "stars", "score": 0.25},
        {"id": "f4", "run_id": part["id"], "key": "stars", "score": 0.25},
    ]
    import_logs(store, written(tmp_path / "runs.jsonl", [*runs, *given]), feedback="stars")
    assert [t.outcome for t in store.trajectories()] == [0.5, 0.25, 0.0]


def test_rewards_by_trace_and_by_thread(store: TrajectoryStore) -> None:
    trace = f"{0xABC3:032x}"
    import_logs(store, EXPORTS / "langfuse.json", rewards={"thread-1": 0.5, trace: -1.0})
    assert [t.outcome for t in store.trajectories()] == [None, 0.5, -1.0]


def test_step_rewards_of_tools_count(store: TrajectoryStore, tmp_path: Path) -> None:
    runs = lines("langsmith.jsonl")
    for run in runs:
        for part in (run["inputs"], run["outputs"]):
            for message in (part or {}).get("messages", []):
                if isinstance(message, dict) and message.get("content") == "Sunny, 24 °C":
                    message["artifact"] = {"reward": 0.25}
    import_logs(store, written(tmp_path / "runs.jsonl", runs), feedback="helpful")
    first = next(store.trajectories())
    assert first.rewards == (0.25, 0.0)
    assert first.total == 1.25


@pytest.mark.parametrize("name", NO_STATES)
@pytest.mark.parametrize("failed", [False, True])
def test_a_call_logged_twice_or_tried_twice_is_one(
    store: TrajectoryStore, tmp_path: Path, name: str, failed: bool
) -> None:
    """Two instrumentors nest a call in itself; a call that broke and was tried again stands beside it."""
    records = lines(name)
    for record in records:
        for resource in record["resourceSpans"]:
            spans = resource["scopeSpans"][0]["spans"]
            for span in [s for s in spans if s["name"].startswith("chat")]:
                twin = copy.deepcopy(span) | {"spanId": "f" + span["spanId"][1:]}
                if failed:
                    twin["startTimeUnixNano"] = str(int(span["startTimeUnixNano"]) - 10**8)
                    twin["status"] = {"code": 2, "message": "RateLimitError: slow down"}
                else:
                    twin["parentSpanId"] = span["spanId"]
                spans.append(twin)
    import_logs(store, written(tmp_path / "twice.jsonl", records))
    found = list(store.trajectories())
    assert [t.segments for t in found] == [TURN_1, TURN_2, BROKEN]
    assert found[0].usage == Usage(2, 107, 26, None)


# -- what cannot be used -----------------------------------------------------------------------------


def of_span(records: list[Any], change: Callable[[dict[str, Any]], None]) -> list[Any]:
    """OTLP requests with every span changed."""
    records = copy.deepcopy(records)
    for record in records:
        for resource in record["resourceSpans"]:
            for scope in resource["scopeSpans"]:
                for span in scope["spans"]:
                    change(span)
    return records


def attribute(span: dict[str, Any], key: str) -> dict[str, Any]:
    return next((a["value"] for a in span["attributes"] if a["key"] == key), {})


def test_cut_values_are_made_up_for_by_others_or_said(store: TrajectoryStore, tmp_path: Path) -> None:
    """A limit on the length of attributes cuts the last state first: the steps still add up to it."""

    def cut(limit: int) -> Path:
        def change(span: dict[str, Any]) -> None:
            for item in span["attributes"]:
                if isinstance(text := item["value"].get("stringValue"), str) and item["key"] != "metadata":
                    item["value"]["stringValue"] = text[:limit]

        return written(tmp_path / f"{limit}.jsonl", of_span(lines("otlp_openinference.jsonl"), change))

    import_logs(store, cut(900))
    assert next(store.trajectories()).segments == TURN_1
    with TrajectoryStore(tmp_path / "shorter.sqlite") as other:
        report = import_logs(other, cut(100))
        assert reasons(report)["truncated content"] == 3
        assert not list(other.trajectories())


def test_dropped_attributes_of_model_calls_are_said(store: TrajectoryStore, tmp_path: Path) -> None:
    def change(span: dict[str, Any]) -> None:
        if span["name"].startswith("chat"):
            span["droppedAttributesCount"] = 1

    path = written(tmp_path / "spans.jsonl", of_span(lines("otlp_gen_ai.json"), change))
    assert reasons(import_logs(store, path)) == {"truncated content": 4}


def test_runs_that_go_on_and_traces_without_a_root(store: TrajectoryStore, tmp_path: Path) -> None:
    runs = lines("langsmith.jsonl")
    roots = [run for run in runs if run["parent_run_id"] is None]
    roots[0] |= {"status": "pending", "end_time": None}
    path = written(tmp_path / "runs.jsonl", [run for run in runs if run is not roots[1]])
    report = import_logs(store, path)
    assert reasons(report) == {"still running": 1, "no root": 1, "no messages": 1}
    assert {left.reason: left.example for left in report.left_out}["no root"] == roots[1]["trace_id"]
    assert [t.segments for t in store.trajectories()] == [BROKEN]


def test_content_kept_elsewhere(store: TrajectoryStore, tmp_path: Path) -> None:
    runs = [run | {"inputs": None, "outputs": None, "inputs_s3_urls": {"ROOT": {}}} for run in lines("langsmith.jsonl")]
    assert reasons(import_logs(store, written(tmp_path / "runs.jsonl", runs))) == {"truncated content": 4}


def test_bad_lines_are_counted(store: TrajectoryStore, tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"
    good = (EXPORTS / "langsmith.jsonl").read_text()
    path.write_text(good + '{"id": "cut off\n' + '{"surprise": 1}\n' + '{"run_type": "llm"}\n' + "[1, 2]\n" + "x" * 9)
    report = import_logs(store, path)
    assert report.imported == 3
    assert reasons(report) == {"malformed line": 2, "unknown schema": 3, "unreadable run": 1, "no messages": 1}
    count = len(good.splitlines())
    assert {left.example for left in report.left_out} >= {f"runs.jsonl:{count + 1}", f"runs.jsonl:{count + 2}"}


def test_json_that_is_nested_too_deeply_costs_its_run_only(store: TrajectoryStore, tmp_path: Path) -> None:
    runs = lines("langsmith.jsonl")
    for run in runs[1:]:
        run["inputs"] = run["outputs"] = '{"messages": ' + "[" * 100_000
    report = import_logs(store, written(tmp_path / "runs.jsonl", runs))
    whole = import_logs(store, EXPORTS / "langsmith.jsonl")
    assert report.imported < whole.imported + whole.known + whole.updated
    assert sum(reasons(report).values()) > sum(reasons(whole).values())


def test_ids_and_numbers_that_no_database_takes(store: TrajectoryStore, tmp_path: Path) -> None:
    runs = lines("langsmith.jsonl")
    first, second = [run["id"] for run in runs if run["parent_run_id"] is None][:2]
    for run in runs:
        for name in ("id", "trace_id", "parent_run_id"):
            run[name] = {first: "\ud800", second: "x" * 300}.get(run[name], run[name])
        run |= {"prompt_tokens": 10**30, "error": run["error"] and "RuntimeError('\ud800\x00')"}
    path = tmp_path / "runs.jsonl"
    path.write_text("".join(json.dumps(run) + "\n" for run in runs))
    report = import_logs(store, path, feedback="helpful")
    assert reasons(report) == {"cannot be written (StoreError)": 2, "no messages": 1}
    assert [t.segments for t in store.trajectories()] == [BROKEN]
    report.to_text().encode()


def test_no_content_is_in_the_report(store: TrajectoryStore, tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"
    path.write_text((EXPORTS / "langsmith.jsonl").read_text() + '{"secret": "Rome\n{"content": "Rome"}\n')
    report = import_logs(store, path, feedback="helpful")
    for text in ("Rome", "Oslo", "sunny", "Secret"):
        assert text not in report.to_text()
        assert text not in json.dumps(report.to_json())


def test_files_that_cannot_be_imported(store: TrajectoryStore, tmp_path: Path) -> None:
    other = tmp_path / "other.jsonl"
    other.write_text('{"a": 1}\n')
    with pytest.raises(ImportFileError, match="known format"):
        import_logs(store, other)
    with pytest.raises(ImportFileError, match="cannot be read"):
        import_logs(store, tmp_path / "missing.jsonl")
    with pytest.raises(ImportFileError, match="unknown format 'xml'"):
        import_logs(store, other, format="xml")
    assert reasons(import_logs(store, other, format="otlp")) == {"unknown schema": 1}
    with pytest.raises(ConfigurationError, match="nothing to import"):
        import_logs(store, [])
    with pytest.raises(ConfigurationError, match="transcript"):
        import_logs(store, other, transcript=Transcript.from_state(str))


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.just("__REDACTED__"),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


@pytest.mark.parametrize("name", ["langsmith.jsonl", "langfuse.json", "phoenix.jsonl", "otlp_gen_ai.json"])
@given(data=st.data())
@settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))
def test_whatever_is_in_a_record_nothing_is_raised(tmp_path: Path, name: str, data: st.DataObject) -> None:
    """Any value of the export replaced by any other: what is imported is whole, the rest is counted."""
    records = lines(name)
    for _ in range(data.draw(st.integers(1, 4))):
        place: Any = records
        while True:
            keys = list(place) if isinstance(place, dict) else list(range(len(place)))
            if not keys:
                break
            key = data.draw(st.sampled_from(keys))
            if not isinstance(place[key], dict | list) or data.draw(st.integers(0, 5)) == 0:
                place[key] = data.draw(json_values)
                break
            place = place[key]
    path = written(tmp_path / "changed.jsonl", records)
    (tmp_path / "fuzz.sqlite").unlink(missing_ok=True)
    with TrajectoryStore(tmp_path / "fuzz.sqlite") as store:
        report = import_logs(store, path, format=name.split("_")[0].split(".")[0], feedback="helpful")
        stored = list(store.trajectories())
    assert report.imported == len(stored)
    assert all(t.segments[0] for t in stored if t.status == "finished")
