"""Side effects under AMC: one per run, from the lineage that was chosen."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest
from langgraph.checkpoint.memory import InMemorySaver

import langgraph_amc as amc

from .support import agent, happened, serving, texts

ASK = {"messages": [("user", "how many?")]}


RUNS = int(os.environ.get("AMC_TEST_RUNS", "150"))


async def test_every_run_has_one_effect(tmp_path: Path) -> None:
    """That of the chosen lineage, and it is what the answer says."""
    with serving() as server:
        app = agent(server.url, tmp_path / "world", particles=3, resample=amc.every(2))
        gate = asyncio.Semaphore(8)

        async def one() -> tuple[str, list[str]]:
            async with gate:
                state = await app.ainvoke(ASK)
                run = state.amc
                (committed,) = [e for e in run.effects if e.state == "committed"]
                assert committed.particle in run.lineage(run.winner.name)
                assert all(e.state in ("committed", "dropped") for e in run.effects)
                return f"ordered {committed.arguments['number']}", texts(state)

        runs = await asyncio.gather(*[one() for _ in range(RUNS)])
    assert all(ordered in said for ordered, said in runs)
    effects = sorted(f"ordered {e['number']}" for e in happened(tmp_path / "world"))
    assert effects == sorted(ordered for ordered, _ in runs)


@pytest.mark.parametrize("sync", [True, False])
async def test_the_run_goes_on_and_branches_again_behind_an_effect(tmp_path: Path, sync: bool) -> None:
    with serving() as server:
        app = agent(server.url, tmp_path / "world", InMemorySaver(), seed=3)
        config = {"configurable": {"thread_id": "t"}}
        state = await asyncio.to_thread(app.invoke, ASK, config) if sync else await app.ainvoke(ASK, config)
    run = state.amc
    assert len(happened(tmp_path / "world")) == 1
    clones = [t for t in run.trajectories if t.parent is not None]
    behind = [t for t in clones if "ordered" in "".join(t.segments[: t.forked_at + 1])]
    assert len(behind) == 3, "the chosen lineage was branched again once its effect had happened"
    history = [s async for s in app.aget_state_history(config)]
    assert history[0].values["messages"][-1].content == state["messages"][-1].content
    assert not history[0].next
