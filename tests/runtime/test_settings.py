"""The arguments of `wrap`: what is refused, and what each choice does."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from langchain_core.messages import AIMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.func import entrypoint
from langgraph.graph import START, StateGraph

import langgraph_amc as amc
from langgraph_amc.smc import SelectionError, WeightError
from tests.runtime.support import ASK, THREAD, agent, by_digits, by_hash, seeded, texts

GUIDED = {"particles": 4, "value": by_digits, "seed": 1}


def no_messages() -> Any:
    graph = StateGraph(dict)
    graph.add_node("work", lambda s: {"n": s["n"] + 1})
    graph.add_edge(START, "work")
    return graph.compile()


async def async_value(transcripts: Any) -> list[float]:
    return [0.0] * len(transcripts)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"particles": 0}, "particles"),
        ({"particles": -1}, "particles"),
        ({"particles": 2.0}, "particles"),
        ({"particles": True}, "particles"),
        ({"particles": "8"}, "particles"),
        ({"objective": "optimize"}, "objective"),
        ({"objective": "sample"}, "beta"),
        ({"seed": -1}, "seed"),
        ({"seed": 1.5}, "seed"),
        ({"seed": True}, "seed"),
        ({"select": "best"}, "select"),
        ({"select": 3}, "select"),
        ({"select": "best_reward"}, "reward"),
        ({"select": "best_value"}, "value"),
        ({"boundary": "modell"}, "its nodes are model, tools"),
        ({"boundary": ["model", "nope"]}, "nope"),
        ({"boundary": 3}, "boundary"),
        ({"boundary": []}, "boundary"),
        ({"resample": "every(0)"}, "whole numbers"),
        ({"resample": "__import__('os')"}, "schedule"),
        ({"resample": 3}, "resample"),
        ({"resampler": "systematik"}, "resampler"),
        ({"resampler": 3}, "resampler"),
        ({"beta": 1.0, "tau": 1.0}, "not both"),
        ({"beta": 0.0}, "temperature"),
        ({"beta": math.nan}, "temperature"),
        ({"beta": "warm"}, "temperature"),
        ({"tau": -1.0}, "temperature"),
        ({"tau": True}, "temperature"),
        ({"tau": "hot"}, "tau"),
        ({"value": 3}, "value function"),
        ({"value": async_value}, "async"),
        ({"reward": 3}, "reward"),
        ({"reward": lambda a, b: 1.0}, "reward|finished run"),
        ({"transcript": "messages"}, "transcript"),
    ],
)
def test_arguments_that_cannot_work(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(amc.ConfigurationError, match=message):
        amc.wrap(agent(seeded()), **settings)


def test_unknown_arguments() -> None:
    with pytest.raises(amc.ConfigurationError, match="did you mean particles"):
        amc.wrap(agent(seeded()), particle=3)


@pytest.mark.parametrize("thing", [None, {}, lambda s: s, "app", StateGraph(dict)])
def test_only_compiled_apps_are_wrapped(thing: Any) -> None:
    with pytest.raises(amc.ConfigurationError, match="compiled LangGraph app"):
        amc.wrap(thing)


def test_wrapping_twice() -> None:
    with pytest.raises(amc.ConfigurationError, match="already"):
        amc.wrap(amc.wrap(agent(seeded())))


def test_a_value_needs_a_transcript() -> None:
    with pytest.raises(amc.ConfigurationError, match="transcript"):
        amc.wrap(no_messages(), value=by_digits)


@pytest.mark.parametrize(
    "answer", [lambda n: [math.nan] * n, lambda n: [None] * n, lambda n: [0.0] * (n + 1), lambda n: 1.0]
)
def test_a_value_function_must_answer(answer: Any) -> None:
    app = amc.wrap(agent(seeded()), particles=3, value=lambda t: answer(len(t)), resample=amc.every(1))
    with pytest.raises(amc.AMCError, match=r"value function|number|NaN"):
        app.invoke(ASK)


@pytest.mark.parametrize("value", [math.inf, -math.inf])
def test_infinite_values_are_refused(value: float) -> None:
    app = amc.wrap(agent(seeded()), particles=3, value=lambda t: [value] * len(t), resample=amc.every(1))
    with pytest.raises(amc.AMCError, match="infinite"):
        app.invoke(ASK)


def test_a_value_function_of_text() -> None:
    def value(text: str) -> float:
        return float(len(text))

    out = amc.wrap(agent(seeded()), particles=3, value=value, resample=amc.every(1), seed=1).invoke(ASK)
    for particle in out.amc.particles:
        whole = "".join(particle.trajectory.segments)
        assert particle.value == float(len(whole))


def test_the_best_value_wins() -> None:
    out = amc.wrap(agent(seeded()), **GUIDED, resample=amc.never()).invoke(ASK)
    assert out.amc.winner.value == max(p.value for p in out.amc.particles)
    assert out.amc.winner.reward is None


# -- rewards -------------------------------------------------------------------------------------------


def last_number(run: amc.FinishedRun) -> float:
    return float(run.messages[-1].content.split()[-1])


async def alast_number(run: amc.FinishedRun) -> float:
    return last_number(run)


def evaluator(inputs: Any, outputs: Any, reference_outputs: Any) -> dict[str, Any]:
    return {"key": "near", "score": -abs(float(outputs["messages"][-1].content.split()[-1]) - reference_outputs)}


@pytest.mark.parametrize("reward", [last_number, alast_number])
@pytest.mark.parametrize("value", [None, by_digits])
async def test_the_best_reward_wins(reward: Any, value: Any) -> None:
    app = amc.wrap(agent(seeded()), particles=4, reward=reward, value=value, seed=1)
    for out in (await app.ainvoke(ASK),):
        rewards = [p.reward for p in out.amc.particles]
        assert rewards == [float(p.output["messages"][-1].content.split()[-1]) for p in out.amc.particles]
        assert out.amc.winner.reward == max(rewards)
        assert out.amc.warnings == ()


def test_an_async_reward_in_a_synchronous_run() -> None:
    out = amc.wrap(agent(seeded()), particles=3, reward=alast_number, seed=1).invoke(ASK)
    assert out.amc.winner.reward == max(p.reward for p in out.amc.particles)


def test_an_evaluator_with_its_task() -> None:
    task = amc.Task(id="t1", input=ASK, reference=500)
    out = amc.wrap(agent(seeded()), particles=5, reward=evaluator, seed=1).invoke(
        ASK, {"configurable": {"amc_task": task}}
    )
    off = [abs(float(p.output["messages"][-1].content.split()[-1]) - 500) for p in out.amc.particles]
    assert -out.amc.winner.reward == min(off)


def test_an_evaluator_without_its_reference_is_missing_not_zero() -> None:
    out = amc.wrap(agent(seeded()), particles=3, reward=evaluator, select="argmax", seed=1).invoke(ASK)
    assert [p.reward for p in out.amc.particles] == [None] * 3
    assert [t.outcome for t in out.amc.trajectories] == [None] * 3
    (warning,) = out.amc.warnings
    assert "3 reward(s) are missing" in warning
    assert "reference" in warning


def test_some_missing_rewards_are_passed_over() -> None:
    def reward(run: amc.FinishedRun) -> float | None:
        n = last_number(run)
        if n > 500:
            raise RuntimeError("judge is down")
        return n

    out = amc.wrap(agent(seeded()), particles=6, reward=reward, seed=3).invoke(ASK)
    known = [p.reward for p in out.amc.particles if p.reward is not None]
    assert known
    assert len(known) < 6
    assert out.amc.winner.reward == max(known)
    assert any("judge is down" in w for w in out.amc.warnings)


def test_best_reward_without_any_reward() -> None:
    app = amc.wrap(agent(seeded()), particles=3, reward=lambda run: None, seed=1)
    with pytest.raises(SelectionError, match="observable"):
        app.invoke(ASK)


# -- selection -----------------------------------------------------------------------------------------


def test_vote_over_answers() -> None:
    answers = iter(["a", "b", "b", "a", "b"])
    app = agent(lambda messages: AIMessage(next(answers)))
    out = amc.wrap(app, particles=5, select=amc.vote(key=lambda o: o["messages"][-1].content), seed=1).invoke(ASK)
    assert texts(out)[-1] == "b"


@pytest.mark.parametrize("select", ["vote", amc.vote(), amc.abstain(0.5, by="vote")])
def test_a_vote_that_cannot_compare_states_says_so_before_anything_is_paid_for(select: Any) -> None:
    called: list[Any] = []

    def reply(messages: Any) -> AIMessage:
        called.append(messages)
        return AIMessage("a")

    app = amc.wrap(agent(reply), particles=3, select=select)
    with pytest.raises(amc.ConfigurationError, match="final_text"):
        app.invoke(ASK)
    with pytest.raises(amc.ConfigurationError, match="final_text"):
        list(app.stream(ASK))
    assert not called
    if select == "vote":  # nobody to compare with
        assert texts(amc.wrap(agent(reply), particles=1, select=select).invoke(ASK))[-1] == "a"


def test_a_vote_over_plain_answers_needs_no_key() -> None:
    answers = iter(["a", "b", "b", "a", "b"])

    @entrypoint()
    def app(question: str) -> str:
        return next(answers)

    assert amc.wrap(app, particles=5, select="vote", seed=1).invoke("?") == "b"


def test_a_selector_of_ones_own() -> None:
    out = amc.wrap(agent(seeded()), particles=4, select=lambda rng, candidates: 2, seed=1).invoke(ASK)
    assert out.amc.winner.name == "p2"


@pytest.mark.parametrize("bad", [lambda r, c: 17, lambda r, c: -1, lambda r, c: None, lambda r, c: 1.5])
def test_a_selector_that_chooses_nobody(bad: Any) -> None:
    with pytest.raises(amc.AMCError, match="select"):
        amc.wrap(agent(seeded()), particles=4, select=bad, seed=1).invoke(ASK)


def test_sample_draws_by_weight() -> None:
    wins = [0, 0]
    for seed in range(60):
        out = amc.wrap(
            agent(lambda messages: AIMessage("same")),
            particles=2,
            reward=lambda run: float(amc.current_particle.get() is None),
            select="sample",
            seed=seed,
        ).invoke(ASK)
        wins[int(out.amc.winner.name[1:])] += 1
    assert min(wins) > 15


@pytest.mark.parametrize("beta", [0.5, 5.0])
def test_objective_sample_is_exact_in_its_report(beta: float) -> None:
    app = amc.wrap(
        agent(seeded()), particles=6, reward=lambda run: last_number(run) / 1000, objective="sample", beta=beta, seed=1
    )
    out = app.invoke(ASK)
    rewards = np.array([p.reward for p in out.amc.particles])
    np.testing.assert_allclose([p.log_weight for p in out.amc.particles], rewards / beta - np.log(6))
    assert out.amc.log_evidence == pytest.approx(np.log(np.mean(np.exp(rewards / beta))))


def test_objective_sample_keeps_the_number_of_live_particles() -> None:
    out = amc.wrap(
        agent(seeded()), **GUIDED, objective="sample", tau=0.01, resample=amc.every(1), select="argmax"
    ).invoke(ASK)
    assert all(len(c.ancestors) == 4 for c in out.amc.checks)
    assert out.amc.log_evidence is not None


def test_a_chance_of_success_outside_0_1_is_refused() -> None:
    app = amc.wrap(agent(seeded()), particles=3, value=lambda t: [2.0] * len(t), beta=0.1, resample=amc.every(1))
    with pytest.raises(WeightError, match="chances of success"):
        app.invoke(ASK)


@pytest.mark.parametrize("resampler", ["systematic", "stratified", "residual", "multinomial"])
def test_resamplers(resampler: str) -> None:
    out = amc.wrap(agent(seeded()), **GUIDED, resampler=resampler, resample="every(1)", tau=0.01).invoke(ASK)
    assert any(len(set(c.ancestors)) < 4 for c in out.amc.checks)


def test_seed_is_fresh_unless_given_and_reported() -> None:
    app = agent(seeded())
    seeds = {amc.wrap(app, particles=2).invoke(ASK).amc.seed for _ in range(5)}
    assert len(seeds) == 5


def test_a_reported_seed_repeats_the_run() -> None:
    app = agent(seeded())
    first = amc.wrap(app, particles=3, value=by_hash, resample=amc.every(1)).invoke(ASK)
    again = amc.wrap(app, particles=3, value=by_hash, resample=amc.every(1), seed=first.amc.seed).invoke(ASK)
    assert texts(first) == texts(again)


def test_a_saver_needs_a_thread() -> None:
    with pytest.raises(amc.ConfigurationError, match="thread_id"):
        amc.wrap(agent(seeded(), saver=InMemorySaver()), particles=2).invoke(ASK)
    assert amc.wrap(agent(seeded(), saver=InMemorySaver()), particles=2).invoke(ASK, THREAD)
