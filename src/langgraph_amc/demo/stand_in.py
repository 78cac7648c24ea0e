"""A scripted policy where a language model would be, so that an example runs offline. It is no language model.

It follows rules and errs with a chance that its author has set, at each decision. So it can show that an app branches
and what steering does with errors of that kind; it cannot show how often a model errs, or how.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Sequence
from typing import Any

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, ToolCall
from langchain_core.messages.ai import UsageMetadata
from langchain_core.outputs import ChatGeneration, ChatResult
from pydantic import PrivateAttr

from langgraph_amc.context import ParticleContext, current_particle
from langgraph_amc.policy.seeds import CallSeeds

Decide = Callable[[Sequence[BaseMessage], random.Random], AIMessage | str]
"""What to answer to a prompt: a message or its text. Chance comes from the generator, and from nothing else."""

MODEL = "AGENT_MODEL"
"""The environment's name of a LiteLLM model that takes the stand-in's place."""

CHARACTERS_PER_TOKEN = 4


class StandIn(BaseChatModel):
    """A chat model whose answers a function decides.

    Attributes
    ----------
    decide: the policy; it sees what a model would be sent.
    seed: of runs that are no particle's; by default their calls are drawn anew each time, as from an API.

    A particle's answers follow from its seed, the prompt and how often it has sent that prompt; clones get seeds of
    their own, so that they part. Token counts are a quarter of the characters.
    """

    decide: Decide
    seed: int | None = None

    _seeds: CallSeeds = PrivateAttr(default_factory=CallSeeds)

    @property
    def _llm_type(self) -> str:
        return "stand-in"

    def bind_tools(self, tools: Sequence[Any], **kwargs: Any) -> StandIn:
        """Itself: its author knows the tools."""
        return self

    def _generate(
        self, messages: list[BaseMessage], stop: Any = None, run_manager: Any = None, **kwargs: Any
    ) -> ChatResult:
        prompt = [(m.type, str(m.content)) for m in messages]
        here = current_particle.get()
        if here is None and self.seed is not None:
            here = ParticleContext("plain", "plain", self.seed)
        rng = random.Random(None if here is None else self._seeds.next(here, prompt))
        answer = self.decide(messages, rng)
        message = AIMessage(answer) if isinstance(answer, str) else answer
        for made in message.tool_calls:
            made["id"] = made["id"] or f"call-{rng.getrandbits(64):016x}"
        sent = sum(len(text) for _, text in prompt) // CHARACTERS_PER_TOKEN + 1
        said = (len(message.text) + sum(len(str(c["args"])) for c in message.tool_calls)) // CHARACTERS_PER_TOKEN + 1
        message.usage_metadata = UsageMetadata(input_tokens=sent, output_tokens=said, total_tokens=sent + said)
        return ChatResult(generations=[ChatGeneration(message=message)])


def agent_model(decide: Decide, **options: Any) -> BaseChatModel:
    """The LiteLLM model that the environment names in ``AGENT_MODEL``, with these options; else the stand-in."""
    name = os.environ.get(MODEL)
    if not name:
        return StandIn(decide=decide)
    from langgraph_amc.policy.chat import chat_model  # imports LiteLLM

    return chat_model(name, **options)


def call(tool: str, **arguments: Any) -> AIMessage:
    """An answer that calls one tool; the stand-in gives it its id."""
    return AIMessage("", tool_calls=[ToolCall(name=tool, args=arguments, id=None)])
