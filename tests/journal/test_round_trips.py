"""What a journal brings back is what was there: every graph's checkpoints, shared as before, stored once."""

from __future__ import annotations

import copy
import dataclasses
import operator
import sqlite3
from pathlib import Path
from typing import Annotated, Any, TypedDict

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage, ToolMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.graph import START, StateGraph

from langgraph_amc.runtime.cells import MessageList
from langgraph_amc.runtime.journal import Journal, JournalError, ParticleRecord, UnserialisableStateError
from langgraph_amc.runtime.journal.coding import pack, unpack
from langgraph_amc.runtime.journal.messages import from_plain, to_plain
from langgraph_amc.runtime.saver import ParticleSaver
from langgraph_amc.trajectories.types import Usage
from tests.journal.support import THREAD, config, contents, fresh, listed, put, reopened, savers, stand
from tests.support.graphs import CASES


@pytest.mark.parametrize("name", CASES)
def test_every_graph_goes_on_from_what_was_restored(journal: Journal, name: str) -> None:
    case = CASES[name]
    run = fresh(journal)
    saver = ParticleSaver(InMemorySaver())
    for said in case.inputs[:-1]:
        follow(case.build(saver), said, run, saver)
    again, restored = reopened(journal, run, saver.base)
    back = savers(restored)["p0"] if restored.particles else ParticleSaver(saver.base)
    assert contents(back) == contents(saver)
    assert listed(back.get_tuple(THREAD)) == listed(saver.get_tuple(THREAD))
    assert [(n.key, n.id) for n in back.lineage()] == [(n.key, n.id) for n in saver.lineage()]
    case.build(saver).invoke(copy.deepcopy(case.inputs[-1]), THREAD)
    follow(case.build(back), case.inputs[-1], again, back)
    expected, found = (case.build(s).get_state(THREAD, subgraphs=True) for s in (saver, back))
    assert (plain(found.values), found.next) == (plain(expected.values), expected.next)
    assert [t.name for t in found.tasks] == [t.name for t in expected.tasks]
    assert [i.value for i in found.interrupts] == [i.value for i in expected.interrupts]
    _, last = reopened(journal, again, saver.base)
    assert contents(savers(last)["p0"]) == contents(back)


def follow(app: Any, said: Any, run: Any, saver: ParticleSaver) -> None:
    """Run an app to its end or its interrupt, journaled at every super-step."""
    boundary = 0
    for boundary, _ in enumerate(
        app.stream(copy.deepcopy(said), THREAD, stream_mode="checkpoints", durability="sync"), 1
    ):
        run.particle(stand("p0", boundary=boundary), saver)
    run.particle(stand("p0", boundary=boundary + 1), saver)


def plain(value: Any) -> Any:
    """Messages without ids that were drawn at random."""
    if isinstance(value, BaseMessage):
        return value.type, value.content, getattr(value, "tool_calls", None)
    if isinstance(value, dict):
        return {key: plain(part) for key, part in value.items()}
    return [plain(part) for part in value] if isinstance(value, list | tuple) else value


def test_records_come_back_as_they_were(url: str) -> None:
    record = ParticleRecord(
        "p1",
        parent="p0",
        forked_at=2,
        status="finished",
        boundary=3,
        step=7,
        started=True,
        ran=("model", "tools"),
        segments=("a", "b", "ü\ud800\0", "d"),
        rewards=(0.0, float("inf"), -1.5),
        values=(None, 0.25, None, float("-inf")),
        outcome=0.5,
        usage=Usage(3, 20, 10, None),
        model_nodes=frozenset({"b", "a"}),
        error="ValueError: no",
        output={"messages": [AIMessage("x", id="1")], "n": 2},
        extra={"shell": [1, {"a": None}]},
    )
    with Journal(url) as journal:
        run = fresh(journal)
        run.particle(stand("p0", segments=("a", "b")), None)
        run.particle(record, None)
        run.population({"w": [float("-inf"), 1.0, float("nan")], "rng": {"state": 2**127 + 1}})
        _, restored = reopened(journal, run)
        assert restored.particles["p1"] == (record, None)
        assert restored.population is not None
        weights = restored.population["w"]
        assert weights[:2] == [float("-inf"), 1.0]
        assert weights[2] != weights[2]
        assert restored.population["rng"] == {"state": 2**127 + 1}


def test_a_clone_shares_segments_nodes_and_messages_with_its_parent(journal: Journal, path: Path) -> None:
    run = fresh(journal)
    saver = ParticleSaver()
    messages = [HumanMessage("h" * 200, id="0")]
    put(saver, 1, messages=messages)
    run.particle(stand("p0", segments=("s0",)), saver)
    clone = saver.fork()
    run.particle(stand("p1", parent="p0", forked_at=0, segments=("s0",)), clone)
    for one, name, parent, version in ((saver, "p0", None, 2), (clone, "p1", "p0", 3)):
        put(one, version, messages=[*value(one, "messages"), AIMessage(name, id=name)])
        run.particle(stand(name, parent=parent, boundary=1, segments=("s0", f"s1 of {name}")), one)
    again, restored = reopened(journal, run)
    assert {n: r.segments for n, (r, _) in restored.particles.items()} == {
        "p0": ("s0", "s1 of p0"),
        "p1": ("s0", "s1 of p1"),
    }
    back = savers(restored)
    heads = [back[n].head("t") for n in ("p0", "p1")]
    assert heads[0].parent is heads[1].parent  # type: ignore[union-attr]
    cells = [h.values["messages"] for h in heads]  # type: ignore[union-attr]
    assert all(isinstance(c, MessageList) for c in cells)
    assert cells[0].items[0] is cells[1].items[0]
    assert cells[0].items[1] is not cells[1].items[1]
    assert [contents(back[n]) for n in ("p0", "p1")] == [contents(saver), contents(clone)]
    assert count(path, "nodes") == 3
    assert count(path, "steps") == 3
    put(back["p1"], 4, messages=[*value(back["p1"], "messages"), AIMessage("more", id="more")])
    again.particle(stand("p1", parent="p0", boundary=2, segments=("s0", "s1 of p1", "s2")), back["p1"])
    _, last = reopened(journal, again)
    assert contents(savers(last)["p1"]) == contents(back["p1"])
    assert last.particles["p1"][0].segments == ("s0", "s1 of p1", "s2")
    assert count(path, "nodes") == 4, "what was restored was not written again"


def test_a_root_of_the_apps_own_saver_keeps_its_parent(journal: Journal) -> None:
    base = InMemorySaver()
    app = CASES["create_agent"].build(base)
    app.invoke(CASES["create_agent"].inputs[0], THREAD)
    root = ParticleSaver(base)
    root.adopt(base.get_tuple(THREAD))  # type: ignore[arg-type]
    saver = root.fork()
    run = fresh(journal)
    follow(CASES["create_agent"].build(saver), CASES["create_agent"].inputs[1], run, saver)
    _, restored = reopened(journal, run, base)
    back = savers(restored)["p0"]
    assert contents(back) == contents(saver)
    assert len(back.lineage()) < len(contents(back)), "the app's own checkpoints are read through"
    oldest = back.lineage()[0]
    assert oldest.parent is not None
    assert oldest.parent.external_parent == saver.lineage()[0].parent.external_parent  # type: ignore[union-attr]
    assert oldest.parent.external_parent


def test_writes_that_come_after_their_checkpoint_was_journaled(journal: Journal) -> None:
    run = fresh(journal)
    saver = ParticleSaver()
    first = put(saver, 1, n=1)
    put(saver, 2, n=2)
    run.particle(stand("p0"), saver)
    saver.put_writes(config(first), [("n", "late")], "task")
    put(saver, 3, n=3)
    saver.put_writes(config("000003"), [("n", "pending"), ("__interrupt__", "ask")], "task", "path")
    run.particle(stand("p0", boundary=1), saver)
    _, restored = reopened(journal, run)
    back = savers(restored)["p0"]
    assert contents(back) == contents(saver)
    assert back.get_tuple(config(first)).pending_writes == [("task", "n", "late")]  # type: ignore[union-attr]
    assert len(back.get_tuple(config()).pending_writes) == 2  # type: ignore[union-attr, arg-type]


moves = st.lists(
    st.tuples(st.sampled_from(["step", "inner", "fork", "prune", "edit", "population", "reopen"]), st.integers(0, 9)),
    max_size=25,
)


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(moves=moves)
def test_any_history_of_particles_is_restored(tmp_path_factory: pytest.TempPathFactory, moves: Any) -> None:
    """Steps, subgraphs, clones, edited messages, pruning and crashes in any order."""
    with Journal(tmp_path_factory.mktemp("db") / "runs.sqlite") as journal:
        run = fresh(journal)
        live = {"p0": ParticleSaver()}
        put(live["p0"], 1, messages=[HumanMessage("go", id="go")])
        run.particle(stand("p0"), live["p0"])
        for version, (move, choice) in enumerate(moves, 2):
            name = sorted(live)[choice % len(live)]
            saver = live[name]
            if move == "fork":
                name = f"p{version}"
                live[name] = saver.fork()
                run.particle(stand(name, parent="p0"), live[name])
            elif move == "prune" and len(live) > 1:
                del live[name]
                run.particle(stand(name, status="pruned"), saver)
            elif move == "population":
                run.population({"live": sorted(live)})
            elif move == "reopen":
                run.population({"live": sorted(live)})
                run, restored = reopened(journal, run)
                back = savers(restored)
                assert {n: contents(s) for n, s in back.items()} == {n: contents(s) for n, s in live.items()}
                live = {n: back[n] for n in live}
            elif move == "inner":
                put(saver, version, ns="sub", n=version)
                run.particle(stand(name), saver)
            elif move in ("step", "edit"):
                messages = value(saver, "messages")
                if move == "edit":
                    messages[0].content = f"edited {version}"
                said = AIMessage(str(version), id=str(version))
                put(saver, version, messages=[*messages, said], equal=["to others'", choice % 3])
                run.particle(stand(name), saver)
        run.population({})
        _, restored = reopened(journal, run)
        assert {n: contents(s) for n, s in savers(restored).items()} == {n: contents(s) for n, s in live.items()}


def test_pruned_particles_leave_nothing_but_their_record(journal: Journal, path: Path) -> None:
    run = fresh(journal)
    saver = ParticleSaver()
    put(saver, 1, n=1)
    run.particle(stand("p0"), saver)
    clone = saver.fork()
    put(clone, 2, n=2)
    put(clone, 3, n=3)
    run.particle(stand("p1", parent="p0"), clone)
    run.particle(stand("p1", parent="p0", status="pruned"), clone)
    run.flush()
    assert count(path, "nodes") == 3, "until the population does without it"
    run.population({})
    run.flush()
    assert count(path, "nodes") == 1
    _, restored = reopened(journal, run)
    assert restored.particles["p1"] == (stand("p1", parent="p0", status="pruned"), None)


@dataclasses.dataclass
class Box:
    inside: Any


@pytest.mark.parametrize(
    ("bad", "part"),
    [(lambda: 1, ""), ({"a": [1, (lambda: 1)]}, "['a'][1]"), (Box({"k": lambda: 1}), ".inside['k']")],
    ids=["itself", "nested", "dataclass"],
)
def test_an_unserialisable_value_is_named_with_its_channel(journal: Journal, bad: Any, part: str) -> None:
    class S(TypedDict):
        log: Annotated[list[str], operator.add]
        thing: Any

    g = StateGraph(S)
    g.add_node("a", lambda s: {"log": ["a"]})
    g.add_edge(START, "a")
    saver = ParticleSaver()
    run = fresh(journal)
    app = g.compile(checkpointer=saver)
    app.invoke({"log": []}, THREAD)
    good = saver.fork()
    run.particle(stand("p0"), good)
    app.invoke({"log": [], "thing": bad}, THREAD)
    with pytest.raises(UnserialisableStateError, match="thing") as caught:
        run.particle(stand("p0", boundary=1), saver)
    assert caught.value.path.endswith(part)
    assert "function" in str(caught.value)
    put(good, 10**6 - 1, log=["fine"])
    run.particle(stand("p0", boundary=1), good)
    _, restored = reopened(journal, run)
    assert contents(savers(restored)["p0"]) == contents(good), "a failure leaves nothing half noted"


def test_values_that_particles_only_happen_to_share_outlive_whoever_stored_them(journal: Journal) -> None:
    """Each particle has what an earlier one had stored, and something of its own: a chain of lenders."""
    run = fresh(journal)
    histories = [["what two begin with"], ["what two begin with", "what two find"], ["another", "what two find", "end"]]
    made = []
    for n, found in enumerate(histories):
        saver = ParticleSaver()
        for version, text in enumerate(found):
            put(saver, 10 * n + version + 1, a=[text], b=[f"step {version} of particle {n}"])
        run.particle(stand(f"p{n}", boundary=n), saver)
        made.append(contents(saver))
    for n in range(2):
        run.particle(stand(f"p{n}", boundary=n, status="pruned"), None)
    run.population({})
    run, restored = reopened(journal, run)
    assert contents(savers(restored)["p2"]) == [listed(found) for found in made[2]]
    saver = savers(restored)["p2"].fork()
    put(saver, 99, a=["what two find"])
    run.particle(stand("p3", parent="p2", forked_at=2, boundary=3), saver)
    run.particle(stand("p2", boundary=2, status="pruned"), None)
    run.population({})
    _, restored = reopened(journal, run)
    assert contents(savers(restored)["p3"]) == contents(saver)


def test_nothing_is_pickled_even_where_the_apps_serialiser_would(journal: Journal) -> None:
    base = InMemorySaver(serde=JsonPlusSerializer(pickle_fallback=True))
    saver = ParticleSaver(base)
    put(saver, 1, thing=object.__new__(Odd))
    with pytest.raises(UnserialisableStateError, match=r"thing.*Odd.*pickle"):
        fresh(journal).particle(stand("p0"), saver)


class Odd:
    """Pickles, but is no value that LangGraph's serialiser knows."""


class Xor:
    """A cipher that is good for a test."""

    def __init__(self, key: int) -> None:
        self.key = key

    def encrypt(self, plaintext: bytes) -> tuple[str, bytes]:
        return "xor", bytes(b ^ self.key for b in plaintext)

    def decrypt(self, ciphername: str, ciphertext: bytes) -> bytes:
        return bytes(b ^ self.key for b in ciphertext)


def test_an_encrypting_serialiser_encrypts_what_the_journal_holds(path: Path) -> None:
    def base(key: int) -> InMemorySaver:
        return InMemorySaver(serde=EncryptedSerializer(Xor(key)))

    with Journal(path) as journal:
        saver = ParticleSaver(base(7))
        put(saver, 1, messages=[HumanMessage("SECRET", id="1")])
        put(saver, 2, thing={"a": "SECRET"})
        saver.put_writes(config("000002"), [("thing", "SECRET")], "task")
        run = journal.open("k", seed=1, about={}, input="SECRET", serde=saver.serde)
        run.particle(stand("p0", status="interrupted", output="SECRET"), saver)
        run.outbox.begin("e", "mail", {})
        run.outbox.done("e", "SECRET")
        run.release()
        again = journal.open("k", seed=1, about={}, serde=saver.serde)
        assert again.input == "SECRET"
        restored = again.restore(base(7))
        assert restored is not None
        assert contents(savers(restored)["p0"]) == contents(saver)
        assert restored.particles["p0"][0].output == "SECRET"
        again.release()
        run = journal.open("k", seed=1, about={}, serde=saver.serde)
        with pytest.raises(JournalError, match="serialiser"):
            run.restore(base(8))
    assert b"SECRET" not in path.read_bytes()


def test_savers_of_another_kind_are_rebuilt_as_that_kind(journal: Journal) -> None:
    class Own(ParticleSaver):
        pass

    run = fresh(journal)
    saver = Own()
    put(saver, 1, n=1)
    run.particle(stand("p0"), saver)
    run.release()
    restored = journal.open("k", seed=1, about={}).restore(blank=Own)
    assert restored is not None
    assert isinstance(restored.particles["p0"][1], Own)


def test_storage_grows_with_new_messages_not_with_steps_times_history(tmp_path: Path) -> None:
    def size(steps: int) -> int:
        where = tmp_path / f"{steps}.sqlite"
        with Journal(where, keep="everything") as journal:
            run = fresh(journal)
            saver = ParticleSaver()
            messages: list[Any] = []
            for step in range(steps):
                messages = [*messages, HumanMessage("x" * 500, id=str(step))]
                put(saver, step + 1, messages=messages)
                messages = value(saver, "messages")
                run.particle(stand("p0", boundary=step, segments=("y" * 500,) * (step + 1)), saver)
            run.finish("finished")
        with sqlite3.connect(where) as db:
            db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        return where.stat().st_size

    small, large = size(100), size(400)
    assert large < 4.4 * small
    assert large / 400 < 4000


@pytest.mark.parametrize("edited", [False, True])
def test_an_output_that_the_newest_checkpoint_holds_is_not_stored_again(
    journal: Journal, path: Path, edited: bool
) -> None:
    run = fresh(journal)
    saver = ParticleSaver()
    messages: list[Any] = [HumanMessage("x" * 500, id=str(n)) for n in range(50)]
    put(saver, 1, messages=messages)
    output = {"messages": messages, "n": 2}
    if edited:  # after it was saved
        messages[7].content = "another"
    run.particle(stand("p0", status="finished", output=output), saver)
    _, restored = reopened(journal, run)
    assert restored.particles["p0"][0].output == output
    with sqlite3.connect(path) as db:
        (size,) = db.execute("SELECT length(output) FROM amc_journal_particles").fetchone()
    assert (size > 20_000) == edited


def test_what_every_founder_begins_with_is_stored_once(journal: Journal, path: Path) -> None:
    def begin(run: Any, n: int) -> list[Any]:
        saver = ParticleSaver()
        put(saver, n + 1, messages=[HumanMessage("x" * 500, id=str(i)) for i in range(50)])
        run.particle(stand(f"p{n}"), saver)
        return contents(saver)

    run = fresh(journal)
    made = [begin(run, n) for n in range(3)]
    run.particle(stand("p0", status="pruned"), None)
    run.population({})
    made.append(begin(run, 3))
    run, restored = reopened(journal, run)
    assert [contents(savers(restored)[f"p{n}"]) for n in range(1, 4)] == made[1:]
    with sqlite3.connect(path) as db:
        sizes = [size for (size,) in db.execute("SELECT length(body) FROM amc_journal_nodes ORDER BY no")]
    assert sizes[0] > 25_000
    assert max(sizes[1:]) < 2_000


def value(saver: ParticleSaver, name: str) -> Any:
    found = saver.get_tuple(config())
    assert found is not None
    return found.checkpoint["channel_values"][name]


def count(path: Path, table: str) -> int:
    with sqlite3.connect(path) as db:
        return db.execute(f"SELECT count(*) FROM amc_journal_{table}").fetchone()[0]


ATOMS = st.none() | st.booleans() | st.integers(-(2**40), 2**40) | st.floats(allow_nan=False) | st.text(max_size=5)
NESTS = st.recursive(
    ATOMS | st.just(AIMessage("inside")) | st.just((1, 2)),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)


@given(
    kind=st.sampled_from([AIMessage, HumanMessage, SystemMessage]),
    content=st.text() | st.lists(st.text() | st.dictionaries(st.text(max_size=3), ATOMS), max_size=2),
    extras=st.dictionaries(st.text(max_size=3), NESTS, max_size=3),
    more=st.fixed_dictionaries(
        {}, optional={"id": st.text(), "name": st.text(), "response_metadata": st.just({"a": 1})}
    ),
)
def test_messages_come_back_as_they_were(kind: type[BaseMessage], content: Any, extras: Any, more: Any) -> None:
    message = kind(content, additional_kwargs=extras, **more)
    plain = to_plain(message)
    if plain is None:  # left to the serialiser
        assert "inside" in repr(extras) or "(" in repr(extras)
        return
    back = from_plain(unpack(pack(plain)))
    assert (type(back), back, back.model_fields_set) == (kind, message, message.model_fields_set)


def test_tool_messages_and_subclasses() -> None:
    said = ToolMessage("5", tool_call_id="c", name="add", artifact={"rows": [1]}, status="error")
    plain = to_plain(said)
    assert plain is not None
    assert from_plain(unpack(pack(plain))) == said
    assert to_plain(ToolMessage("5", tool_call_id="c", artifact=object())) is None

    class Own(AIMessage):
        pass

    Own.__name__ = "AIMessage"
    assert to_plain(Own("x")) is None
    assert to_plain(AIMessage("x", own="field")) is None
