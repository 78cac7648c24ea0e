"""Where effects, journals and budgets meet the edge of a run."""

from __future__ import annotations

import asyncio
import contextlib
import os
from pathlib import Path
from typing import Any

import pytest
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.graph import START, MessagesState, StateGraph

import langgraph_amc as amc

from .support import HTTPModel, agent, happened, judge, serving, texts
from .test_kills import ASK, CONFIG, FORK
from .test_resume import broken_off


def last_act(url: str, done: list[str], checkpointer: Any = None, after: Any = None, **settings: Any) -> Any:
    """A graph that thinks and then acts, as the last thing it does unless ``after`` comes."""

    @amc.effect("commit")
    def act(text: str) -> str:
        done.append(text)
        return f"did {text}"

    def think(state: MessagesState) -> Any:
        return {"messages": [model.invoke(state["messages"])]}

    def last(state: MessagesState) -> Any:
        return {"messages": [("ai", act(str(state["messages"][-1].text)))]}

    model = HTTPModel(url=url)
    graph = StateGraph(MessagesState)
    graph.add_sequence([think, last, *([after] if after is not None else [])])
    graph.add_edge(START, "think")
    return amc.wrap(graph.compile(checkpointer), particles=3, value=judge, **settings)


@pytest.mark.parametrize("sync", [True, False])
@pytest.mark.parametrize("how", [{}, {"objective": "sample", "beta": 1.0}, {"budget": amc.Budget(seconds=60)}])
async def test_an_effect_may_be_the_last_thing_that_happens(sync: bool, how: dict[str, Any]) -> None:
    done: list[str] = []
    with serving() as server:
        app = last_act(server.url, done, **how)
        state = await asyncio.to_thread(app.invoke, ASK) if sync else await app.ainvoke(ASK)
    assert state["messages"][-1].text == f"did {done[0]}"
    assert len(done) == 1


async def test_apps_users_and_contexts_do_not_share_a_run(tmp_path: Path) -> None:
    """What is left of one call is not the beginning of another."""

    class Stop(BaseException):
        pass

    def stop(state: MessagesState) -> Any:
        raise Stop

    with serving() as server, amc.Journal(tmp_path / "runs.sqlite") as journal:
        broken = last_act(server.url, [], after=stop, journal=journal, effects={"act": "pure"})
        with pytest.raises(Stop):
            await broken.ainvoke(ASK, {"configurable": {"user": "ann"}})
        assert [run.status for run in journal.runs()] == ["resumable"]
        for app, config in (
            (broken, {"configurable": {"user": "bob"}}),
            (last_act(server.url, [], journal=journal, effects={"act": "pure"}), {"configurable": {"user": "ann"}}),
        ):
            before = len(journal.runs())
            with contextlib.suppress(Stop):
                await app.ainvoke(ASK, config)
            assert len(journal.runs()) == before + 1, "another call, another run"


async def test_a_thread_that_has_moved_on_stops_an_effect_before_it_happens() -> None:
    done: list[str] = []
    saver = InMemorySaver()
    with serving() as server:
        plain = last_act(server.url, [], saver)._amc_app

        def meddling(transcript: str) -> float:
            plain.update_state(CONFIG, {"messages": [("user", "me too")]}, as_node="last")
            return judge(transcript)

        app = last_act(server.url, done, saver, resample=amc.every(1))
        app = amc.wrap(app._amc_app, particles=3, value=meddling, resample=amc.every(1))
        with pytest.raises(amc.ConcurrentWriteError, match="nothing was committed"):
            await app.ainvoke(ASK, CONFIG)
    assert not done


async def test_what_has_happened_is_kept_although_the_run_breaks() -> None:
    """Without a journal, a value function that fails after an effect leaves the thread as a plain run would."""
    done: list[str] = []

    def failing(transcript: str) -> float:
        if done:
            raise OSError("no judge")
        return judge(transcript)

    def again(state: MessagesState) -> Any:
        return {"messages": [("ai", "and that was that")]}

    with serving() as server:
        app = last_act(server.url, done, InMemorySaver(), after=again)
        app = amc.wrap(app._amc_app, particles=3, value=failing, resample=amc.every(1), boundary="step")
        with pytest.raises(OSError, match="no judge"):
            await app.ainvoke(ASK, CONFIG)
        state = app.get_state(CONFIG)
    assert len(done) == 1
    assert f"did {done[0]}" in [m.text for m in state.values["messages"]]


def test_a_run_that_comes_back_with_its_budget_used_up_still_answers(tmp_path: Path) -> None:
    with serving(latency=0.02) as server:
        broken_off(server.url, tmp_path, server.asked, 9)
        with SqliteSaver.from_conn_string(str(tmp_path / "app.sqlite")) as saver:
            how = {"journal": tmp_path / "runs.sqlite", "seed": 5, "budget": amc.Budget(calls=5)}
            state = agent(server.url, tmp_path / "world", saver, **how).invoke(ASK, CONFIG)
    assert state.amc.truncated
    assert "draw" in "".join(texts(state))


def twin(url: str, folder: Path) -> None:
    """Two equal calls at once, of which the process kills the second in the middle of its way."""

    async def both() -> None:
        journal = amc.Journal(folder / "runs.sqlite")
        first = agent(url, folder / "world", journal=journal, seed=5)

        def dying(transcript: str) -> float:
            if "ordered" in transcript:
                os.kill(os.getpid(), 9)
            return judge(transcript)

        second = agent(url, folder / "world", journal=journal, seed=5, value=dying)
        one = asyncio.create_task(first.ainvoke(ASK))
        await asyncio.sleep(0.01)
        await asyncio.gather(one, second.ainvoke(ASK))

    asyncio.run(both())


def test_of_equal_calls_the_one_that_was_killed_is_gone_on_with(tmp_path: Path) -> None:
    with serving() as server:
        process = FORK.Process(target=twin, args=(server.url, tmp_path))
        process.start()
        process.join(60)
        assert process.exitcode == -9
        with amc.Journal(tmp_path / "runs.sqlite") as journal:
            left = [run for run in journal.runs() if run.status == "resumable"]
            app = agent(server.url, tmp_path / "world", journal=journal, seed=5)
            while left:
                state = app.invoke(ASK)
                assert state.amc.run_id in {run.id for run in left}
                left = [run for run in journal.runs() if run.status == "resumable"]
            assert len(journal.runs()) == 2
    assert len(happened(tmp_path / "world")) == 2
