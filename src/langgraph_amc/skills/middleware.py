"""Skills for an agent of ``create_agent``, whatever its model: in full, or names first and the rest on demand."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, get_args

from langchain_core.messages import SystemMessage
from langchain_core.tools import tool

from langgraph_amc.context import Instructions, instructions
from langgraph_amc.errors import AMCError, ConfigurationError
from langgraph_amc.policy.instructions import place_in_messages
from langgraph_amc.skills.injecting import current_library
from langgraph_amc.skills.library import SkillLibrary
from langgraph_amc.skills.types import SkillError


class MissingLangChainError(AMCError, ImportError):
    """The package that `create_agent` is in is not installed."""


try:
    from langchain.agents.middleware import AgentMiddleware, ModelRequest, ModelResponse
except ImportError as error:
    raise MissingLangChainError("SkillsMiddleware is for create_agent: pip install langchain") from error

Disclosure = Literal["full", "progressive"]
READ = "read_skill"
"""Name of the tool that reads a skill."""


class SkillsMiddleware(AgentMiddleware):
    """Puts a library into the system prompt of every call of an agent; the state never holds it.

    Parameters
    ----------
    skills: a library, or the folder of one, which is read once.
    disclosure: ``"full"`` shows all skills; ``"progressive"`` shows names and descriptions, and a tool ``read_skill``
        gives the rest, of a skill or of a further file in it, when the model asks.

    A slot ``<skills/>`` in the system prompt says where the text goes; without one it goes to the end.
    """

    def __init__(self, skills: SkillLibrary | str | Path, disclosure: Disclosure = "full") -> None:
        super().__init__()
        if disclosure not in get_args(Disclosure):
            raise ConfigurationError(f"disclosure is {' or '.join(get_args(Disclosure))}, got {disclosure!r}")
        self._own = skills if isinstance(skills, SkillLibrary) else SkillLibrary.read(skills)
        self._disclosure = disclosure
        self.tools = [self._reader()] if disclosure == "progressive" else []

    @property
    def library(self) -> SkillLibrary:
        """The library that the next call gets."""
        here = current_library.get()
        return self._own if here is None else here

    def wrap_model_call(
        self, request: ModelRequest[Any], handler: Callable[[ModelRequest[Any]], ModelResponse[Any]]
    ) -> ModelResponse[Any]:
        """Add the text to the request alone."""
        with self._placed(request) as placed:
            return handler(placed)

    async def awrap_model_call(
        self, request: ModelRequest[Any], handler: Callable[[ModelRequest[Any]], Awaitable[ModelResponse[Any]]]
    ) -> ModelResponse[Any]:
        """The same for asynchronous agents."""
        with self._placed(request) as placed:
            return await handler(placed)

    @contextmanager
    def _placed(self, request: ModelRequest[Any]) -> Iterator[ModelRequest[Any]]:
        library = self.library
        text = library.text() if self._disclosure == "full" else library.index(READ)
        outer = instructions.get()
        if outer is not None:
            outer.placed += 1
        own = [] if request.system_message is None else [request.system_message]
        before = instructions.set(Instructions(text))
        try:
            messages: list[Any] = place_in_messages([*own, *request.messages])
            system = messages.pop(0) if messages and isinstance(messages[0], SystemMessage) else None
            yield request.override(system_message=system, messages=messages)
        finally:
            instructions.reset(before)

    def _reader(self) -> Any:
        @tool(READ)
        def read_skill(name: str, file: str = "") -> str:
            """Read a skill: its instructions, or one further file of it, by the path that they name."""
            try:
                skill = self.library.get(name)
            except SkillError as error:
                return str(error)
            if not file:
                listed = "".join(f"\n- {path}" for path in sorted(skill.files))
                return skill.body + (f"\n\nFurther files:{listed}" if listed else "")
            if file not in skill.files:
                return f"{name} has no file {file!r}; it has: {', '.join(sorted(skill.files)) or 'none'}"
            return skill.files[file].decode("utf-8", "replace")

        return read_skill
