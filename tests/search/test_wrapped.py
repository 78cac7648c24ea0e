"""Searches over a real app: the same answers in threads and on a loop, honest records, effects, budgets."""

from __future__ import annotations

from typing import Any

import pytest
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph

import langgraph_amc as amc
from langgraph_amc.search import beam, bfs, dfs, foa, mcts
from tests.runtime.support import ASK, THREAD, Roots, agent, by_hash, call, number, seeded, texts, turn_of

SEARCHES = [
    bfs(3, 2),
    bfs(2, 2, steps=2, depth=2),
    beam(3, 2),
    dfs(3, 0.7, thoughts=30),
    mcts(3, 24),
    mcts(2, 24, evaluate="rollout", backup="max"),
]
ROUNDS = 4


def wrapped(search: Any, seed: int = 0, **settings: Any) -> Any:
    app = agent(seeded(ROUNDS), **settings.pop("app", {}))
    return amc.wrap(app, **{"search": search, "value": by_hash, "seed": seed, **settings})


@pytest.mark.parametrize("search", SEARCHES, ids=str)
async def test_async_and_sync_search_alike(search: Any) -> None:
    one, two = wrapped(search).invoke(ASK), await wrapped(search).ainvoke(ASK)
    assert texts(one) == texts(two)
    assert one.amc.tree == two.amc.tree
    assert [t.segments for t in one.amc.trajectories] == [t.segments for t in two.amc.trajectories]


@pytest.mark.parametrize("search", SEARCHES, ids=str)
def test_the_record_tells_the_tree_and_the_thread_has_the_winner(search: Any) -> None:
    saver, roots = InMemorySaver(), Roots()
    app = wrapped(search, app={"saver": saver})
    out = app.invoke(ASK, {**THREAD, "callbacks": [roots]})
    assert texts(app.get_state(THREAD).values) == texts(out)
    assert not roots.errors
    assert roots.ended == set(roots.started)
    run = out.amc
    by_name = {t.particle: t for t in run.trajectories}
    assert {p.name for p in run.particles} == {n.particle for n in run.tree if n.status in ("ended", "failed")}
    for thought in run.tree[1:]:
        parent = run.tree[thought.parent]
        own = by_name[thought.particle]
        assert len(own.segments) > min(thought.boundary, len(own.segments) - 1)
        if thought.value is not None:
            assert own.values[thought.boundary] == thought.value == by_hash([own.segments[: thought.boundary + 1]])[0]
        if parent.particle is not None:
            line = run.lineage(thought.particle)
            assert parent.particle in line
            before = by_name[parent.particle].segments[: parent.boundary + 1]
            assert own.segments[: parent.boundary + 1] == before
    # the answer is the best by what is known when serving
    assert run.winner.value == max(p.value for p in run.particles)
    assert not any(check.resampled for check in run.checks)


@pytest.mark.parametrize("search", [bfs(1, 1), dfs(1), mcts(1), beam(1, 1)], ids=lambda s: type(s).__name__)
def test_one_branch_is_a_plain_run(search: Any) -> None:
    plain = amc.wrap(agent(seeded(ROUNDS)), particles=1, seed=3).invoke(ASK)
    assert texts(wrapped(search, 3).invoke(ASK)) == texts(plain)


def test_first_thoughts_are_those_of_the_same_particles_without_a_search() -> None:
    alone = amc.wrap(agent(seeded(ROUNDS)), particles=3, seed=5).invoke(ASK).amc
    run = wrapped(mcts(3, 24), 5).invoke(ASK).amc
    found = {t.particle: t.segments[:2] for t in run.trajectories if t.parent is None}
    assert found == {t.particle: t.segments[:2] for t in alone.trajectories}


def test_rollouts_with_an_observed_reward_need_no_value_function() -> None:
    def reward(run: Any) -> float:
        return int(run.messages[-1].content.split()[-1]) / 1000

    search = mcts(3, 30, evaluate="rollout")
    run = amc.wrap(agent(seeded(ROUNDS)), search=search, reward=reward, seed=2).invoke(ASK).amc
    assert run.winner.reward == max(p.reward for p in run.particles)
    ended = [n for n in run.tree if n.status == "ended"]
    assert sorted(n.worth for n in ended) == sorted(p.reward for p in run.particles)
    assert run.tree[0].visits == len(ended)
    assert not run.checks or all(not check.values for check in run.checks)


def test_a_reward_that_is_not_observed_is_never_seen() -> None:
    """What evaluations judge by is not in the settings, so a search knows V of the last state and no more."""
    run = wrapped(mcts(3, 24)).invoke(ASK).amc
    for p in run.particles:
        assert p.reward is None
        (end,) = [n for n in run.tree if n.status == "ended" and n.particle == p.name]
        assert end.worth == p.value


@pytest.mark.parametrize("search", [bfs(3, 2), dfs(3, 0.7), mcts(3, 24), foa(4, 1)], ids=lambda s: type(s).__name__)
@pytest.mark.parametrize("sync", [True, False])
async def test_effects_happen_once_and_the_search_goes_on_behind_them(search: Any, sync: bool) -> None:
    happened: list[int] = []

    @tool
    def order(n: int) -> str:
        """Order."""
        happened.append(n)
        return f"ordered {n}"

    def reply(messages: Any) -> Any:
        turn = turn_of(messages)
        n = number(len(messages))
        return call("order", turn, n=n) if turn == 1 else seeded(3)(messages)

    from tests.runtime.support import note

    for seed in range(3):
        happened.clear()
        app = amc.wrap(
            agent(reply, tools=[order, note]), search=search, value=by_hash, seed=seed, effects={"order": "commit"}
        )
        out = app.invoke(ASK) if sync else await app.ainvoke(ASK)
        run = out.amc
        (n,) = happened
        assert f"ordered {n}" in texts(out)
        (committed,) = [e for e in run.effects if e.state == "committed"]
        assert committed.particle in run.lineage(run.winner.name)
        behind = [t for t in run.trajectories if t.parent and f"ordered {n}" in "".join(t.segments[: t.forked_at + 1])]
        assert behind, "it branched again behind the effect"
        if run.tree:
            assert len([t for t in run.tree if t.parent is None]) == 2


@pytest.mark.parametrize("search", [bfs(3, 2), dfs(3, 0.9), mcts(3, 40), beam(2, 3)], ids=lambda s: type(s).__name__)
def test_a_budget_ends_it_and_the_best_so_far_answers(search: Any) -> None:
    whole = wrapped(search, budget=amc.Budget(calls=10_000)).invoke(ASK).amc
    assert whole.stopped is None
    for calls in (2, 4, whole.usage.calls // 2, whole.usage.calls - 1):
        run = wrapped(search, budget=amc.Budget(calls=calls)).invoke(ASK).amc
        assert run.usage.calls <= calls
        assert run.stopped is not None
        assert "budget" in run.stopped
        assert any("budget" in warning for warning in run.warnings)
        ended = [p for p in run.particles if p.trajectory.status == "finished"]
        known = [p.value for p in ended or run.particles if p.value is not None]
        assert run.winner.value == max(known)
        assert run.truncated == (not ended)


@pytest.mark.parametrize("search", SEARCHES, ids=str)
@pytest.mark.parametrize("stop_at", [2, 3])
def test_a_run_with_a_journal_goes_on(tmp_path: Any, search: Any, stop_at: int) -> None:
    calls = [0]

    def value(transcripts: Any) -> list[float]:
        calls[0] += 1
        if calls[0] == stop_at:
            raise OSError("away")
        return by_hash(transcripts)

    whole = wrapped(search).invoke(ASK)
    app = wrapped(search, value=value, journal=tmp_path / "runs")
    with pytest.raises(OSError, match="away"):
        app.invoke(ASK)
    again = app.invoke(ASK)
    assert texts(again) == texts(whole)
    assert again.amc.tree == whole.amc.tree
    assert [t.segments for t in again.amc.trajectories] == [t.segments for t in whole.amc.trajectories]
    assert [t.values for t in again.amc.trajectories] == [t.values for t in whole.amc.trajectories]


def test_another_search_is_another_run(tmp_path: Any) -> None:
    def broken(transcripts: Any) -> list[float]:
        raise OSError("away")

    journal = amc.Journal(tmp_path / "runs")
    with pytest.raises(OSError, match="away"):
        wrapped(bfs(3, 2), value=broken, journal=journal).invoke(ASK)
    out = wrapped(mcts(6, 24), journal=journal).invoke(ASK)
    assert texts(out) == texts(wrapped(mcts(6, 24)).invoke(ASK))
    assert sorted(run.status for run in journal.runs()) == ["finished", "resumable"]


@pytest.mark.parametrize("first", [{"search": mcts(3, 24)}, {"resample": amc.every(1)}], ids=["search", "filter"])
def test_a_named_run_goes_on_with_the_kind_of_loop_that_began_it(tmp_path: Any, first: dict[str, Any]) -> None:
    calls = [0]

    def value(transcripts: Any) -> list[float]:
        calls[0] += 1
        if calls[0] == 3:
            raise OSError("away")
        return by_hash(transcripts)

    config = {"configurable": {"amc_run": "mine"}}
    other = {"resample": amc.every(1)} if "search" in first else {"search": mcts(3, 24)}
    common = {"value": value, "journal": tmp_path / "runs", "seed": 1}
    with pytest.raises(OSError, match="away"):
        amc.wrap(agent(seeded(ROUNDS)), **first, **common).invoke(ASK, config)
    with pytest.raises(amc.JournalError, match="begun"):
        amc.wrap(agent(seeded(ROUNDS)), **other, **common).invoke(ASK, config)
    assert amc.wrap(agent(seeded(ROUNDS)), **first, **common).invoke(ASK, config)["messages"]


def test_what_is_shown_stays_true() -> None:
    for search in SEARCHES:
        shown = list(wrapped(search).stream(ASK, stream_mode="values"))
        assert all(texts(shown[-1])[: len(texts(event))] == texts(event) for event in shown)


def test_the_best_possible_ends_it() -> None:
    run = amc.wrap(
        agent(seeded(ROUNDS)),
        search=mcts(3, 60, evaluate="rollout"),
        reward=lambda run: 1.0,
        best_possible=1.0,
        seed=1,
    ).invoke(ASK)
    assert "best possible" in run.amc.stopped
    assert len(run.amc.particles) == 1


def test_inside_a_subgraph_and_with_worlds_of_their_own() -> None:
    graph = StateGraph(MessagesState)
    graph.add_node("worker", agent(seeded(ROUNDS)))
    graph.add_edge(START, "worker")
    app = amc.wrap(graph.compile(), search=mcts(3, 18), value=by_hash, boundary="worker/model", seed=1)
    run = app.invoke(ASK).amc
    assert turn_of(run.winner.output["messages"]) == ROUNDS + 1
    assert max(t.boundary for t in run.tree) > 1

    class Counter:
        def __init__(self) -> None:
            self.n = 0

        def snapshot(self) -> int:
            return self.n

        def restore(self, token: int) -> None:
            self.n = token

    counter = amc.Session(Counter)

    @tool
    @amc.effect("stateful")
    def add(n: int) -> str:
        """Add a number."""
        counter.get().n += n
        return f"sum {counter.get().n}"

    def reply(messages: Any) -> Any:
        turn = turn_of(messages)
        return call("add", turn, n=number(len(messages))) if turn < ROUNDS else seeded(0)(messages)

    run = amc.wrap(agent(reply, tools=[add]), search=mcts(3, 18), value=by_hash, effects={"add": "stateful"}, seed=1)
    for particle in run.invoke(ASK).amc.particles:
        messages = particle.output["messages"]
        added = [c["args"]["n"] for m in messages if m.type == "ai" for c in m.tool_calls]
        said = [int(m.content.split()[1]) for m in messages if m.type == "tool"]
        assert said == [sum(added[: i + 1]) for i in range(len(added))]


def test_who_watches_is_told_who_goes_on() -> None:
    heard: list[Any] = []
    run = wrapped(mcts(3, 24), callbacks=[heard.append]).invoke(ASK).amc
    moved = [set(e.particles) for e in heard if isinstance(e, amc.watching.GenerationStarted)]
    stepped: list[set[str]] = []
    for e in heard:
        if isinstance(e, amc.watching.GenerationStarted):
            stepped.append(set())
        elif isinstance(e, amc.watching.ParticleStepped | amc.watching.ParticleEnded) and stepped:
            stepped[-1].add(e.particle)
    assert moved == stepped
    assert len(moved) > 3
    assert {e.particle for e in heard if isinstance(e, amc.watching.ParticleEnded)} == {p.name for p in run.particles}


def test_foa_is_amc_with_other_settings() -> None:
    preset = wrapped(foa(4, 2, discount=0.8)).invoke(ASK).amc
    same = amc.wrap(agent(seeded(ROUNDS)), value=by_hash, seed=0, **foa(4, 2, discount=0.8).arguments).invoke(ASK).amc
    assert preset.checks == same.checks
    assert any(check.resampled for check in preset.checks)
    assert preset.tree == ()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"search": "mcts"}, "amc.search"),
        ({"search": amc.search.MCTS}, "amc.search"),
        ({"search": bfs(), "value": None}, "by value"),
        ({"search": mcts(evaluate="rollout"), "value": None}, "worth"),
        ({"search": mcts(), "particles": 4}, "leave particles"),
        ({"search": mcts(), "resample": amc.every(1)}, "leave resample"),
        ({"search": mcts(), "objective": "sample", "beta": 1.0}, "leave beta=…, objective=…"),
        ({"search": dfs(), "quorum": 0.8}, "leave quorum"),
        ({"search": foa(), "backtrack": amc.backtrack()}, "leave backtrack"),
        ({"search": foa(), "value": None}, "value"),
    ],
)
def test_what_cannot_work(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(amc.ConfigurationError, match=message):
        wrapped(**settings)


def test_the_report_says_that_it_was_a_search(tmp_path: Any) -> None:
    from langgraph_amc.report.answer import account
    from langgraph_amc.report.record import of_journal, of_result
    from langgraph_amc.report.run import run_report

    journal = amc.Journal(tmp_path / "runs")
    run = wrapped(bfs(3, 2), journal=journal).invoke(ASK).amc
    for page in (of_result(run), of_journal(journal.show(run.run_id, transcripts=True))):
        assert page.thoughts == run.thoughts == len(run.tree) - 1
        assert f"{run.thoughts} continuations" in str(account(page))
    assert run_report(run).sections
