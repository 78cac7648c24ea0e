"""A language model as proposer: it sees contrasts and cites them; support is counted and contradictions are weighed
by program.

Trace2Skill merges edits by asking the model which are better justified. Here the model says only which edits mean the
same; what stays of contradictory ones is decided by how many tasks stand behind each (`merging`), and what of all is
taken, by runs (`gate`).
"""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import Callable, Sequence
from typing import TypeVar

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import BaseMessage, HumanMessage, SystemMessage

from langgraph_amc.checks import check_whole
from langgraph_amc.errors import ConfigurationError
from langgraph_amc.policy.chat import chat_model
from langgraph_amc.policy.retry import AnswerError
from langgraph_amc.skills.edits import fitted
from langgraph_amc.skills.library import SkillLibrary
from langgraph_amc.skills.merging import fresh, merge
from langgraph_amc.skills.proposers.prompts import Shown, grouping, question, show
from langgraph_amc.skills.proposers.reading import UnreadableError, read_edits, read_groups
from langgraph_amc.skills.types import Edit, Evidence, Proposal, Rejected, SkillError

ANSWER_TOKENS = 4096
"""``max_tokens`` of a model that is given by its name: budgets reckon with it."""
_STOPPED_SHORT = frozenset({"length", "max_tokens", "max_output_tokens", "model_length", "content_filter", "safety"})

T = TypeVar("T")


class UnusableProposalWarning(UserWarning):
    """What a model proposed could not be used, in whole or in part."""


class LLMProposer:
    """Asks a chat model for edits, a few contrasts at a time.

    Parameters
    ----------
    model: any LangChain chat model, or a LiteLLM name, for example ``"openai/gpt-5.1"``.
    batch: contrasts, and tasks that always fail, shown in one call. calls: the most calls for edits in one round; one
        more asks which of them mean the same.
    per_call: the most edits of one call. characters: the most that is shown of a run.
    retries: how often an answer that cannot be read is asked for again; one that was cut off is never used.
    """

    def __init__(
        self,
        model: BaseChatModel | str,
        *,
        batch: int = 4,
        calls: int = 4,
        per_call: int = 4,
        characters: int = 6000,
        retries: int = 1,
    ) -> None:
        for name, value, least in (
            *(("batch", batch, 1), ("calls", calls, 1), ("per_call", per_call, 1)),
            *(("characters", characters, 200), ("retries", retries, 0)),
        ):
            check_whole(name, value, least)
        if not isinstance(model, BaseChatModel | str):
            raise ConfigurationError(f"a proposer is a LangChain chat model or the name of one, got {model!r}")
        self._model = chat_model(model, max_tokens=ANSWER_TOKENS) if isinstance(model, str) else model
        self._batch, self._calls, self._per_call = batch, calls, per_call
        self._characters, self._retries = characters, retries

    @property
    def name(self) -> str:
        """``"llm"``."""
        return "llm"

    async def propose(
        self, library: SkillLibrary, evidence: Evidence, rejected: Sequence[Rejected], limit: int
    ) -> tuple[Proposal, ...]:
        """The best supported edits that fit the library; see `Proposer`."""
        shown = [show(*items, self._characters) for items in self._portions(evidence)]
        found = await asyncio.gather(*(self._edits(library, portion, rejected) for portion in shown))
        edits = list(fresh([edit for part in found for edit in part], rejected))
        groups = await self._groups(edits) if len(shown) > 1 and len(edits) > 1 else []
        fitting = [edit for edit in merge(edits, groups) if _fits(library, edit)]
        return tuple(Proposal((edit,), self.name) for edit in fitting[:limit])

    def _portions(self, evidence: Evidence) -> list[tuple[list, list]]:
        items = [*evidence.contrasts, *evidence.failures][: self._batch * self._calls]
        contrasts = len(evidence.contrasts)
        portions = []
        for start in range(0, len(items), self._batch):
            place = range(start, min(start + self._batch, len(items)))
            portions.append(
                (
                    [evidence.contrasts[i] for i in place if i < contrasts],
                    [evidence.failures[i - contrasts] for i in place if i >= contrasts],
                )
            )
        return portions

    async def _edits(self, library: SkillLibrary, shown: Shown, rejected: Sequence[Rejected]) -> tuple[Edit, ...]:
        asked = question(library, shown, rejected, self._per_call)
        reading = await self._ask(asked, lambda answer: read_edits(answer, shown.runs, self._per_call))
        if reading is None:
            return ()
        if reading.dropped:
            _warn(f"{len(reading.dropped)} proposed edit(s) were thrown away: {'; '.join(reading.dropped)}")
        return reading.edits

    async def _groups(self, edits: Sequence[Edit]) -> list[list[int]]:
        return await self._ask(grouping(edits), read_groups) or []

    async def _ask(self, asked: tuple[str, str], read: Callable[[str], T]) -> T | None:
        """What the answer says; ``None``, with a warning, where no answer could be used."""
        system, said = asked
        problem = ""
        for _ in range(1 + self._retries):
            again = f"\n\nAn earlier answer could not be used: {problem}." if problem else ""
            messages: list[BaseMessage] = [SystemMessage(system), HumanMessage(said + again)]
            try:
                answer = await self._model.ainvoke(messages)
            except AnswerError as error:  # cut off, or empty, after the model's own retries
                problem = str(error)
                break
            metadata = answer.response_metadata
            if {str(metadata.get(key)).lower() for key in ("finish_reason", "stop_reason")} & _STOPPED_SHORT:
                problem = "it was cut off: raise max_tokens"
                break
            try:
                return read(str(answer.text))
            except UnreadableError as error:
                problem = str(error)
        _warn(f"an answer of the proposing model is not used: {problem}")
        return None


def _fits(library: SkillLibrary, edit: Edit) -> bool:
    try:
        fitted(library, edit)
    except SkillError as error:
        _warn(f"a proposed edit is thrown away: {error}")
        return False
    return True


def _warn(text: str) -> None:
    warnings.warn(text, UnusableProposalWarning, stacklevel=3)
