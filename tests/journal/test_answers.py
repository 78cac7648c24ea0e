"""Paid answers: kept when they come, given out again in their order to whom they were given, and to nobody else."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from langchain.agents import create_agent
from langchain.agents.middleware import ModelRetryMiddleware
from langchain_core.caches import InMemoryCache
from langchain_core.globals import get_llm_cache, set_llm_cache
from langchain_core.language_models import FakeListLLM
from langchain_core.load import dumps
from langchain_core.messages import AIMessage, BaseMessage, ChatMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.tracers.context import register_configure_hook

import langgraph_amc as amc
from langgraph_amc.context import ParticleContext, current_boundary, current_particle
from langgraph_amc.policy.usage import UsageCallback
from langgraph_amc.runtime.journal import Journal, JournalError, RunJournal, UnserialisableStateError
from langgraph_amc.runtime.llm_cache import (
    Asked,
    JournalCache,
    Recorder,
    SaltedCache,
    _texts,
    _texts_of_prompt,
    journaled_llm_cache,
    question,
    salted_llm_cache,
    user_llm_cache,
)
from langgraph_amc.trajectories.types import Usage
from tests.journal.support import child, fresh, kill, reopened, stand
from tests.runtime.support import ASK, ReplyModel


@pytest.fixture(autouse=True)
def no_cache() -> Iterator[None]:
    set_llm_cache(None)
    yield
    set_llm_cache(None)


class Counting:
    """A reply that says how often its model was asked, and what that costs."""

    def __init__(self, first: int = 0) -> None:
        self.asked = first
        self.lock = threading.Lock()

    def __call__(self, messages: list[Any]) -> AIMessage:
        with self.lock:
            self.asked += 1
            return AIMessage(f"answer {self.asked}", response_metadata={"response_cost": 0.5, "model_name": "m"})


heard_by: ContextVar[Recorder | None] = ContextVar("heard_by", default=None)
register_configure_hook(heard_by, True)


@contextmanager
def particle(run: RunJournal, name: str = "p0", boundary: int = 0) -> Iterator[None]:
    """Be a particle of a run that stands at a boundary."""
    here = current_particle.set(ParticleContext(run.id, name, 1))
    at = current_boundary.set(boundary)
    heard = heard_by.set(Recorder())
    try:
        yield
    finally:
        heard_by.reset(heard)
        current_boundary.reset(at)
        current_particle.reset(here)


def ask(model: Any, text: str = "go", **options: Any) -> AIMessage:
    return model.invoke([HumanMessage(text, id="anything")], **options)


def test_an_answer_is_given_again_with_its_usage_and_is_not_paid_twice(journal: Journal) -> None:
    reply = Counting()
    model = ReplyModel(reply=reply)
    run = fresh(journal)
    first, again = UsageCallback(), UsageCallback()
    with journaled_llm_cache(run.id, run.answers), particle(run):
        answers = [ask(model, config={"callbacks": [first]}), ask(model, config={"callbacks": [first]})]
    assert [a.content for a in answers] == ["answer 1", "answer 2"], "within a process nothing is answered twice"
    run, _ = reopened(journal, run)
    with journaled_llm_cache(run.id, run.answers), particle(run):
        replayed = [ask(model, config={"callbacks": [again]}) for _ in range(2)]
        assert reply.asked == 2
        assert replayed == answers, "the message is what it was: id, usage and metadata"
        assert ask(model).content == "answer 3"
        assert ask(model, "another").content == "answer 4"
    assert again.usage == first.usage == Usage(2, 20, 4, 1.0)


async def test_on_an_event_loop_and_while_streaming(journal: Journal) -> None:
    reply = Counting()
    model = ReplyModel(reply=reply)
    run = fresh(journal)

    async def many() -> list[str]:
        answers = await asyncio.gather(*(model.ainvoke([HumanMessage(f"q{i}")]) for i in range(20)))
        return [a.content for a in answers]

    with journaled_llm_cache(run.id, run.answers), particle(run):
        first = await many()
    await run.arelease()
    run = journal.open("k", seed=1, about={})
    with journaled_llm_cache(run.id, run.answers), particle(run):
        assert await many() == first
    assert reply.asked == 20


def test_plain_language_models_are_kept_too(journal: Journal) -> None:
    run = fresh(journal)
    with journaled_llm_cache(run.id, run.answers), particle(run):
        assert FakeListLLM(responses=["one"]).invoke("go") == "one"
    run, _ = reopened(journal, run)
    with journaled_llm_cache(run.id, run.answers), particle(run):
        assert FakeListLLM(responses=["one"]).invoke("go") == "one"
        assert run.answers._given.total() == 1


ANSWERED = """
import sys, time
from langgraph_amc.runtime.journal import Journal
from langgraph_amc.runtime.llm_cache import journaled_llm_cache
from tests.journal.test_answers import Counting, ask, particle
from tests.runtime.support import ASK, ReplyModel

run = Journal(sys.argv[1]).open("k", seed=1, about={})
with journaled_llm_cache(run.id, run.answers), particle(run):
    ask(ReplyModel(reply=Counting()))
time.sleep(0.2)  # nobody waits for the disk, and nobody has to
print("ready", flush=True)
time.sleep(60)
"""


def test_an_answer_that_was_received_survives_a_kill(path: Path) -> None:
    kill(child(ANSWERED, str(path)))
    reply = Counting(first=10)
    with Journal(path) as journal:
        run = journal.open("k", seed=1, about={})
        with journaled_llm_cache(run.id, run.answers), particle(run):
            assert ask(ReplyModel(reply=reply)).content == "answer 1"
    assert reply.asked == 10


def test_answers_go_when_their_boundary_is_passed(journal: Journal) -> None:
    model = ReplyModel(reply=Counting())
    run = fresh(journal)
    with journaled_llm_cache(run.id, run.answers):
        for boundary in range(3):
            with particle(run, boundary=boundary):
                ask(model)
            run.particle(stand("p0", boundary=boundary + 1), None)
        with particle(run, "p1", boundary=1):
            ask(model)
        with particle(run, boundary=3):
            ask(model)
    run.population({})
    run.flush()
    assert kept(journal) == [("p0", 3), ("p1", 1)]
    run.particle(stand("p0", boundary=3, status="finished"), None)
    run.population({})
    run.flush()
    assert kept(journal) == [("p1", 1)]


def kept(journal: Journal) -> list[tuple[str, int]]:
    with journal._database.engine.connect() as connection:
        found = connection.exec_driver_sql("SELECT particle, boundary FROM amc_journal_answers ORDER BY 1, 2")
        return [tuple(row) for row in found]


questions = st.lists(
    st.tuples(st.sampled_from(["p0", "p1"]), st.integers(0, 1), st.sampled_from(["a", "b"])), min_size=1, max_size=12
)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(asked=questions, cut=st.integers(0, 12), data=st.data())
def test_whoever_asks_gets_their_own_answers_in_their_order(
    tmp_path_factory: pytest.TempPathFactory, asked: Any, cut: int, data: Any
) -> None:
    """Cut anywhere, go on in any interleaving of the particles: everybody hears what they heard before."""
    model = ReplyModel(reply=Counting())

    def hear(run: RunJournal, question: tuple[str, int, str]) -> str:
        with journaled_llm_cache(run.id, run.answers), particle(run, *question[:2]):
            return str(ask(model, question[2]).content)

    with Journal(tmp_path_factory.mktemp("db") / "runs.sqlite") as journal:
        run = fresh(journal)
        heard: dict[Any, list[str]] = {}
        for question in asked[:cut]:
            heard.setdefault(question, []).append(hear(run, question))
        assert Counter(a for h in heard.values() for a in h).most_common(1)[0][1] == 1 if heard else True
        run, _ = reopened(journal, run)
        for question in data.draw(st.permutations(asked)):
            expected = heard.get(question, [])
            answer = hear(run, question)
            if expected:
                assert answer == expected.pop(0)
            else:
                assert answer not in [a for h in heard.values() for a in h]
        assert not any(heard.values())


# -- together with other caches, runs and calls ---------------------------------------------------


def test_outside_a_journaled_run_the_users_cache_is_as_it_was(journal: Journal) -> None:
    reply = Counting()
    model = ReplyModel(reply=reply)
    cache = InMemoryCache()
    set_llm_cache(cache)
    run = fresh(journal)
    with salted_llm_cache(), journaled_llm_cache(run.id, run.answers):
        assert isinstance(get_llm_cache(), SaltedCache), "nothing to give out again: no cache of the journal's"
        assert user_llm_cache() is cache
        assert ask(model).content == "answer 1"
        assert ask(model).content == "answer 1"
        here = current_particle.set(ParticleContext("no journal", "p0", 5))
        assert ask(model).content == "answer 2"
        assert ask(model).content == "answer 2", "a run without a journal has the user's cache, salted"
        current_particle.reset(here)
        with particle(run):
            assert ask(model).content == "answer 3"
            assert ask(model).content == "answer 3", "the user's cache answers, as without a journal"
    assert get_llm_cache() is cache
    assert ask(model).content == "answer 1"
    run.flush()
    assert kept(journal) == [("p0", 0)] * 2, "also what the user's cache answered, which may not outlive the process"


def test_without_a_cache_of_the_users_there_is_none_outside(journal: Journal) -> None:
    reply = Counting()
    run = fresh(journal)
    with salted_llm_cache(), journaled_llm_cache(run.id, run.answers):
        assert user_llm_cache() is None
        assert [ask(ReplyModel(reply=reply)).content for _ in range(2)] == ["answer 1", "answer 2"]
    assert get_llm_cache() is None


def with_an_answer(journal: Journal, key: str) -> RunJournal:
    """A run that has an answer to give out again."""
    run = fresh(journal, key)
    with journaled_llm_cache(run.id, run.answers), particle(run):
        ask(ReplyModel(reply=Counting()))
    return reopened(journal, run)[0]


def test_the_journals_cache_goes_when_it_is_used_up(journal: Journal) -> None:
    run = with_an_answer(journal, "k")
    with journaled_llm_cache(run.id, run.answers), particle(run):
        assert isinstance(get_llm_cache(), JournalCache)
        ask(ReplyModel(reply=Counting()))
        assert get_llm_cache() is None


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 0, 2)])
def test_runs_begin_and_end_in_any_order(journal: Journal, order: tuple[int, ...]) -> None:
    runs = [with_an_answer(journal, str(i)) for i in range(2)]
    cache = InMemoryCache()
    set_llm_cache(cache)
    enter: list[Callable[[], Any]] = [
        salted_llm_cache,
        lambda: journaled_llm_cache(runs[0].id, runs[0].answers),
        lambda: journaled_llm_cache(runs[1].id, runs[1].answers),
    ]
    stacks = []
    for opened in enter:
        stacks.append(ExitStack())
        stacks[-1].enter_context(opened())
    for left, i in enumerate(order):
        assert user_llm_cache() is cache
        assert get_llm_cache() is not cache
        stacks[i].close()
        open_now = set(order[left + 1 :])
        assert isinstance(get_llm_cache(), JournalCache) == bool(open_now & {1, 2})
        assert isinstance(get_llm_cache(), SaltedCache) == (open_now == {0})
    assert get_llm_cache() is cache


def test_a_cache_the_user_sets_meanwhile_stays(journal: Journal) -> None:
    run = fresh(journal)
    late = InMemoryCache()
    with salted_llm_cache(), journaled_llm_cache(run.id, run.answers):
        set_llm_cache(late)
    assert get_llm_cache() is late


def test_addresses_of_objects_do_not_make_another_question() -> None:
    asked = [HumanMessage("\ud800", id="1")]
    assert question(asked, {"f": "<function f at 0x7f00>"}) == question(asked, {"f": "<function f at 0x7fFF>"})
    assert question(asked, {"seed": 1}) != question(asked, {"seed": 2})
    assert question(asked, None) == question([HumanMessage("\ud800", id="2")], None)
    assert question("x", None) != question("y", None)


TURNS = st.one_of(
    st.builds(HumanMessage, st.text(max_size=4) | st.lists(st.just({"type": "text", "text": "x"}), max_size=2)),
    st.builds(
        lambda said, a: AIMessage(said, tool_calls=[{"name": "f", "args": {"a": a}, "id": "c"}]), st.text(), st.text()
    ),
    st.builds(lambda said: ToolMessage(said, tool_call_id="c"), st.text(max_size=4)),
)


@given(st.lists(TURNS, min_size=2, max_size=9), st.data())
def test_a_question_is_the_same_whatever_was_asked_before(asked: list[BaseMessage], data: st.DataObject) -> None:
    so_far = Asked()
    for _ in range(4):
        messages = list(asked[: data.draw(st.integers(0, len(asked)))])
        if messages and data.draw(st.booleans()):
            messages[data.draw(st.integers(0, len(messages) - 1))].content = data.draw(st.text(max_size=3))
        assert question(messages, None, so_far) == question(messages, None)


DIFFERENT = [
    AIMessage("x"),
    AIMessage("x", tool_calls=[{"name": "f", "args": {}, "id": "c"}]),
    HumanMessage("x"),
    HumanMessage("x", name="ann"),
    HumanMessage("x", additional_kwargs={"k": 1}),
    ChatMessage("x", role="a"),
    ChatMessage("x", role="b"),
    ToolMessage("x", tool_call_id="c"),
    ToolMessage("x", tool_call_id="c", status="error"),
    SystemMessage("x"),
]


def test_whatever_a_provider_is_sent_makes_another_question() -> None:
    assert len({question([HumanMessage("a"), said, HumanMessage("b")], None) for said in DIFFERENT}) == len(DIFFERENT)


@given(st.lists(TURNS, min_size=1, max_size=9))
def test_a_prompt_written_for_a_cache_is_recognised(asked: list[BaseMessage]) -> None:
    assert _texts_of_prompt(dumps(asked)) == _texts(asked)


@given(st.lists(st.text(max_size=3), min_size=1, max_size=30), st.data())
def test_what_one_message_says_makes_another_question(said: list[str], data: st.DataObject) -> None:
    other = list(said)
    other[data.draw(st.integers(0, len(said) - 1))] += "x"
    assert question(list(map(HumanMessage, said)), None) != question(list(map(HumanMessage, other)), None)


def test_an_answer_that_cannot_be_kept_is_said_so(journal: Journal) -> None:
    class Odd(ReplyModel):
        def _generate(self, *_: Any, **__: Any) -> ChatResult:
            return ChatResult(generations=[ChatGeneration(message=AIMessage("x"), generation_info={"raw": lambda: 1})])

    run = fresh(journal)
    with (
        journaled_llm_cache(run.id, run.answers),
        particle(run),
        pytest.raises(UnserialisableStateError, match="model's answer"),
    ):
        ask(Odd(reply=Counting()))


@pytest.mark.parametrize("use_async", [False, True])
def test_a_journal_that_fails_stops_the_run_and_asks_nobody_again(path: Path, use_async: bool) -> None:
    """Neither a middleware that retries nor the failure of single particles may hide it."""
    reply = Counting()

    def breaking(messages: list[Any]) -> AIMessage:
        if not reply.asked:
            with sqlite3.connect(path) as db:
                db.execute("DROP TABLE amc_journal_answers")
            db.close()
        return reply(messages)

    app = create_agent(ReplyModel(reply=breaking), [], middleware=[ModelRetryMiddleware(max_retries=3)])
    journal = Journal(path)
    better = amc.wrap(app, particles=2, journal=journal, select=lambda rng, candidates: 0)
    with pytest.raises(JournalError, match="no such table"):
        asyncio.run(better.ainvoke(ASK)) if use_async else better.invoke(ASK)
    assert reply.asked <= 2
