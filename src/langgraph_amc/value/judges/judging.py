"""Language models as value functions: one asked without training (zero-shot), or shown examples and polled (FoA).

AMC compares a learned V with a language model that is asked for a score ("SMC zero-shot"), and with the value
prompt of Fleet of Agents (Klein et al. 2024): few-shot examples, several samples, their mean. Both are here, with
one difference that matters: an answer that cannot be read is *missing*. It is asked for again, then left out.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from contextvars import copy_context
from functools import partial
from typing import Any

import numpy as np
from langchain_core.language_models import BaseChatModel

from langgraph_amc.checks import check_whole, is_number
from langgraph_amc.context import ParticleContext, current_particle, instructions
from langgraph_amc.errors import ConfigurationError
from langgraph_amc.policy.budget import BudgetExceededError
from langgraph_amc.policy.seeds import mix
from langgraph_amc.trajectories.transcript import printable
from langgraph_amc.trajectories.types import Segments
from langgraph_amc.value.ensembles import mean_and_spread
from langgraph_amc.value.judges.asking import Asker, is_fatal, open_model, read_message
from langgraph_amc.value.judges.prompts import Example, Prompts, Questions, as_examples
from langgraph_amc.value.judges.reading import Reading, Scale
from langgraph_amc.value.protocol import FloatArray

MAX_CHARS = 60_000
"""Longest transcript shown to a judge by default, in characters: about 15,000 tokens."""
VOTES_WINDOW = 0.05
"""Seconds in which the votes on a state find together; little beside a judge's answer."""


class MissingScoreWarning(UserWarning):
    """A judge has left states without a score."""


class Judge:
    """A chat model as a `ValueFunction`; made by `judge` and `foa_judge`, safe to call from several threads."""

    def __init__(
        self,
        model: BaseChatModel,
        prompts: Questions,
        *,
        reward: Scale,
        votes: int = 1,
        retries: int = 2,
        concurrency: int = 16,
    ) -> None:
        for name, count, least in (("votes", votes, 1), ("retries", retries, 0), ("concurrency", concurrency, 1)):
            check_whole(name, count, least)
        if votes > 1:
            if vars(model).get("temperature") == 0:
                raise ConfigurationError("votes at temperature 0 are all the same: raise the judge's temperature")
            model = _pollable(model)
        self.model = model
        self.prompts = prompts
        self.reward = reward
        self.votes = votes
        self._retries = retries
        self._concurrency = concurrency
        self._asker = Asker(model, prompts.schema())

    def score(self, transcripts: Sequence[Segments]) -> FloatArray:
        """Mean vote on each state, float64 [n], in units of reward; NaN where no answer could be read, or paid for.

        Raises
        ------
        BudgetExceededError: not one call fitted into the accounts around. Errors of the model that no later call could
        avoid (a bad key, an unknown model) are raised as they are.
        """
        return self.score_with_spread(transcripts)[0]

    def score_with_spread(self, transcripts: Sequence[Segments]) -> tuple[FloatArray, FloatArray]:
        """Mean and standard deviation of the votes on each state, both float64 [n]; see `score`."""
        return mean_and_spread(self.poll(transcripts).T)

    def poll(self, transcripts: Sequence[Segments]) -> FloatArray:
        """The single votes, float64 [n, votes], in units of reward; identical states are asked about once."""
        texts = [printable("".join(segments)) for segments in transcripts]
        states = list(dict.fromkeys(texts))
        readings = self._ask([(state, vote) for state in states for vote in range(self.votes)])
        _warn(readings)
        scores = [np.nan if r.score is None else self._in_reward(r.score) for r in readings]
        rows = np.array(scores, dtype=np.float64).reshape(-1, self.votes)
        where = {state: row for row, state in enumerate(states)}
        return rows[[where[text] for text in texts]]

    def _in_reward(self, score: float) -> float:
        scale, reward = self.prompts.scale, self.reward
        if scale == reward:
            return score
        return reward.low + (score - scale.low) / (scale.high - scale.low) * (reward.high - reward.low)

    def _ask(self, questions: Sequence[tuple[str, int]]) -> list[Reading]:
        """Answers in order, so many at a time that the votes on one state go out together."""
        if not questions:
            return []
        workers = max(self._concurrency // self.votes * self.votes, min(self._concurrency, self.votes))
        pool = ThreadPoolExecutor(min(workers, len(questions)), thread_name_prefix="amc-judge")
        try:
            asked: list[Future[Reading]] = [pool.submit(copy_context().run, self._vote, q) for q in questions]
            wait(asked, return_when=FIRST_EXCEPTION)
        finally:
            pool.shutdown(cancel_futures=True)
        ended = [future for future in asked if not future.cancelled()]
        errors = [error for future in ended if (error := future.exception()) is not None]
        fatal = [error for error in errors if not isinstance(error, BudgetExceededError)]
        if fatal or len(errors) == len(ended):
            raise (fatal or errors)[0]
        unpaid = Reading(None, "the budget did not pay for it")
        return [unpaid if f.cancelled() or f.exception() is not None else f.result() for f in asked]

    def _vote(self, question: tuple[str, int]) -> Reading:
        state, vote = question
        instructions.set(None)  # what the agent is told is not for its judge
        if self.votes > 1:
            # each vote is a clone that stands before the same prompt: the chat model then asks once for all of them,
            # and gives each a seed of its own
            outer = current_particle.get()
            around = () if outer is None else (outer.run_id, outer.particle)
            name = f"judge-{mix(state, *around):x}"
            current_particle.set(ParticleContext(name, f"vote-{vote}", mix(name, vote)))
        reading = Reading(None)
        for _ in range(1 + self._retries):
            try:
                answer = self._asker.ask(partial(self.prompts.messages, state, problem=reading.problem))
            except Exception as error:
                if is_fatal(error):
                    raise
                return Reading(None, f"the call failed with {type(error).__name__}")
            reading = read_message(answer, self.prompts.scale)
            if reading.score is not None:
                break
        return reading


def judge(
    model: BaseChatModel | str,
    *,
    task: str | None = None,
    criteria: str | None = None,
    scale: tuple[float, float] = (0.0, 1.0),
    reward: tuple[float, float] = (0.0, 1.0),
    explain: bool = False,
    retries: int = 2,
    max_chars: int | None = MAX_CHARS,
    concurrency: int = 16,
) -> Judge:
    """A value function that asks a chat model how each run will turn out (AMC, baseline "SMC zero-shot").

    Parameters
    ----------
    model: any LangChain chat model, or a name for `chat_model`, which then writes 1,024 tokens at most.
    task: what the agent was told, for example its system prompt; by default the system message in the transcript.
        The prompt of ``create_agent`` is not in its state, so give the judge the same text.
    criteria: what makes a run a success; by default, that the user's request is met.
    scale: the numbers the judge may answer with, for example ``(0, 10)``.
    reward: the rewards that the ends of the scale stand for.
    explain: have it give its reasons first: better and dearer.
    retries: how often an answer that cannot be read is asked for again.
    max_chars: show of longer transcripts their beginning and end.
    concurrency: most calls on their way at a time.

    Raises ConfigurationError for arguments that cannot work.
    """
    prompts = Prompts(_scale("scale", scale), task, criteria, (), explain, max_chars)
    return Judge(open_model(model), prompts, reward=_scale("reward", reward), retries=retries, concurrency=concurrency)


def foa_judge(
    model: BaseChatModel | str,
    *,
    examples: Sequence[Example | tuple[Any, ...]] = (),
    votes: int = 3,
    task: str | None = None,
    criteria: str | None = None,
    scale: tuple[float, float] = (1.0, 10.0),
    reward: tuple[float, float] = (0.0, 1.0),
    explain: bool = True,
    retries: int = 2,
    max_chars: int | None = MAX_CHARS,
    concurrency: int = 16,
) -> Judge:
    """A value function that shows a chat model examples and averages several answers (AMC, baseline FoA).

    Where the model is a `chat_model`, the votes on one state are one request with ``n=votes``: the prompt is paid
    once. Votes differ by sampling, so the model's temperature must not be 0.

    Parameters
    ----------
    examples: `Example` objects, or tuples ``(transcript, score[, reason])``; scores are on the scale.
    votes: answers for each state; those that cannot be read are left out of the mean.

    The other parameters are those of `judge`. Raises ConfigurationError for arguments that cannot work.
    """
    prompts = Prompts(_scale("scale", scale), task, criteria, as_examples(examples), explain, max_chars)
    reach = _scale("reward", reward)
    return Judge(open_model(model), prompts, reward=reach, votes=votes, retries=retries, concurrency=concurrency)


def _pollable(model: BaseChatModel) -> BaseChatModel:
    """The model without a cache, which would give every vote the first one's answer, and patient with their threads."""
    changes: dict[str, Any] = {"cache": False}
    if window := vars(model).get("coalesce_window"):  # of a `chat_model`
        changes["coalesce_window"] = max(window, VOTES_WINDOW)
    return model.model_copy(update=changes)


def _scale(name: str, given: tuple[float, float]) -> Scale:
    pair = tuple(given) if isinstance(given, Sequence) and not isinstance(given, str) else ()
    if len(pair) != 2 or not all(is_number(end) for end in pair):
        raise ConfigurationError(f"{name} is a pair (low, high) of numbers, such as (0, 10), got {given!r}")
    return Scale(float(pair[0]), float(pair[1]))


def _warn(readings: Sequence[Reading]) -> None:
    problems = Counter(reading.problem for reading in readings if reading.score is None)
    if problems:
        listed = "; ".join(f"{problem} ({count}x)" for problem, count in problems.most_common())
        warnings.warn(
            f"{problems.total()} of {len(readings)} answers of a judge are missing: {listed}",
            MissingScoreWarning,
            stacklevel=4,
        )
