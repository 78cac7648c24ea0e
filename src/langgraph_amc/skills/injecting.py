"""Which library is in the prompt: a context variable, so that an app can be measured with many and know of none."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from langgraph_amc.context import Instructions, instructions
from langgraph_amc.skills.library import SkillLibrary

current_library: ContextVar[SkillLibrary | None] = ContextVar("amc_current_library", default=None)
"""The library that `using` has set; middleware takes it instead of its own."""


@contextmanager
def using(library: SkillLibrary) -> Iterator[Instructions]:
    """Below, models of `chat_model`, models of this process and `SkillsMiddleware` put this library into the prompt.

    Instead of whatever they were given; an empty library adds nothing. Yields what counts the calls that were reached.
    """
    here = Instructions(library.text())
    before = current_library.set(library), instructions.set(here)
    try:
        yield here
    finally:
        current_library.reset(before[0])
        instructions.reset(before[1])


def skills_text(library: SkillLibrary | None = None) -> str:
    """The text of the current library, else of the given one: for a prompt that an app puts together itself."""
    here = instructions.get()
    if here is not None:
        here.placed += 1
        return here.text
    return "" if library is None else library.text()
