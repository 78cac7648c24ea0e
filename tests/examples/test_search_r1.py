"""Reasoning and searching in turns: a corpus that misleads, a cap that holds, rewards that read citations."""

from __future__ import annotations

from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage

from langgraph_amc.demo.stand_in import StandIn
from langgraph_amc.tasks import FinishedRun, Task
from langgraph_amc.tasks.loading import load_object, load_tasks
from langgraph_amc.trajectories import Transcript
from tests.examples.readme import EXAMPLES, commands, compared
from tests.examples.test_react import careful

FOLDER = EXAMPLES / "search_r1"
AGENT, CORPUS, CITATIONS = (str(FOLDER / name) for name in ("agent.py", "fact_corpus.py", "citations.py"))


def load(name: str) -> Any:
    return load_object(f"{CITATIONS}:{name}")


def test_the_corpus_is_large_and_misleads_and_is_the_same_each_time() -> None:
    country = load_object(f"{CORPUS}:country")
    made = country()
    assert 4_000 < len(made.documents) == len({d.id for d in made.documents})
    assert country.__wrapped__() == made != country.__wrapped__(seed=1)
    texts = [d.text for d in made.documents]
    assert sum(text.startswith("Some say") for text in texts) > 200
    seats: dict[str, list[Any]] = {}
    for document in made.documents:
        if " has its seat in " in document.text:
            seats.setdefault(document.text.partition(" has ")[0], []).append(document)
    contradicted = [found for found in seats.values() if len(found) > 1]
    assert len(contradicted) > 200
    for firm, found in seats.items():  # what counts is the newest
        town, document = made.facts["seat"][firm]
        newest = max(found, key=lambda d: d.year)
        assert newest.id == document
        assert newest.text.endswith(f" {town}.")


def test_questions_are_answered_by_their_documents() -> None:
    documents = {d.id: d for d in load_object(f"{CORPUS}:country")().documents}
    tasks = load_tasks(f"{CORPUS}:tasks", test=15)
    assert {task.metadata["hops"] for task in tasks} == {2, 3, 4}
    for task in tasks:
        proof = [documents[d].text for d in task.reference["documents"]]
        assert len(proof) == task.metadata["hops"]
        assert proof[-1].endswith(f" {task.reference['answer']}.")
        assert task.reference["answer"] not in str(task.input)


async def test_who_does_not_slip_answers_and_cites() -> None:
    app = load_object(f"{AGENT}:build")(careful(load_object(f"{FOLDER / 'search_stand_in.py'}:decide")))
    right = 0
    for task in load_tasks(f"{CORPUS}:tasks", test=10):
        output = await app.ainvoke(task.input)
        said = tuple(output["messages"])
        run = FinishedRun(task, output, said)
        if load("exact_match")(run):  # now and then the index does not show the document that is needed
            right += 1
            assert load("composite")(run) == pytest.approx(1.5 - 0.02 * task.metadata["hops"])
            assert load("well_founded")(Transcript().render(said)) == 0.9
    assert right >= 8


async def test_the_cap_on_searches_holds() -> None:
    app = load_object(f"{AGENT}:build")(StandIn(decide=lambda messages, rng: "<search>river</search>"))
    said = (await app.ainvoke({"messages": [("user", "Where?")]}))["messages"]
    assert sum("<information>" in m.text for m in said) == load_object(f"{AGENT}:MAX_SEARCHES")
    assert "No searches are left" in said[-2].text


FOUND = HumanMessage(
    "<information>\n[d0001] (yearbook, 2005) Zubor Works has its seat in Orlum.\n"
    "[d0002] (yearbook, 2019) Zubor Works has its seat in Sanum.\n"
    "[d0003] (newspaper, 2020) Some say that Ina Tek was born in Orlum.\n</information>"
)
ASKED = HumanMessage("In which town does Zubor Works have its seat today?")


@pytest.mark.parametrize(
    ("statement", "unsupported", "value"),
    [
        ("Zubor Works has its seat in Sanum. [d0002]", 0, 0.9),
        ("Zubor Works has its seat in Orlum. [d0001]", 0, 0.18),  # out of date
        ("Zubor Works has its seat in Sanum. [d0001]", 1, 0.18),  # says something else
        ("Zubor Works has its seat in Sanum. [d0009]", 1, 0.18),  # never seen
        ("Ina Tek was born in Orlum. [d0003]", 1, 0.036),  # hearsay, on somebody nobody asked for
    ],
)
def test_statements_are_held_against_what_was_seen(statement: str, unsupported: int, value: float) -> None:
    task = Task("t", "?", reference={"answer": "Sanum", "documents": ["d0002"]})
    said = (ASKED, AIMessage("<search>seat</search>"), FOUND, AIMessage(f"<answer>Sanum\n{statement}</answer>"))
    run = FinishedRun(task, {}, said)
    f1 = float("d0002" in statement)
    assert load("composite")(run) == pytest.approx(1 + 0.5 * f1 - 0.02 - 0.25 * unsupported)
    thought = (*said[:3], AIMessage(f"<think>{statement}</think><search>more</search>"))
    assert load("well_founded")(Transcript().render(thought)) == pytest.approx(value)


def test_an_answer_without_form_earns_nothing() -> None:
    task = Task("t", "?", reference={"answer": "Sanum", "documents": ["d0002"]})
    assert load("exact_match")(FinishedRun(task, {}, (ASKED, AIMessage("It is Sanum.")))) == 0.0


@pytest.mark.parametrize("words", commands("search_r1"), ids=lambda words: words[5].rpartition(":")[2])
def test_readme_runs(words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    arms = compared(words, monkeypatch, "--limit", "4")["arms"]
    assert arms["one run"]["observable"]["mean"] < arms["AMC"]["observable"]["mean"]
