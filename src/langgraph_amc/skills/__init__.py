"""Skills: a library of Agent Skills in the prompt of any agent, edits of it with their evidence, and who proposes them.

What decides whether an edit is taken is a paired comparison of runs (`gate`), never the proposer.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from langgraph_amc.skills.edits import apply
from langgraph_amc.skills.evidence import gather
from langgraph_amc.skills.gate import Verdict, compare
from langgraph_amc.skills.injecting import skills_text, using
from langgraph_amc.skills.library import SkillLibrary
from langgraph_amc.skills.proposers.extractive import ExtractiveProposer
from langgraph_amc.skills.proposers.llm import LLMProposer
from langgraph_amc.skills.types import (
    Citation,
    Contrast,
    Edit,
    Evidence,
    Proposal,
    Proposer,
    Rejected,
    Skill,
    SkillError,
)

if TYPE_CHECKING:
    from langgraph_amc.skills.middleware import SkillsMiddleware

__all__ = [
    "Citation",
    "Contrast",
    "Edit",
    "Evidence",
    "ExtractiveProposer",
    "LLMProposer",
    "Proposal",
    "Proposer",
    "Rejected",
    "Skill",
    "SkillError",
    "SkillLibrary",
    "SkillsMiddleware",
    "Verdict",
    "apply",
    "compare",
    "gather",
    "skills_text",
    "using",
]


def __getattr__(name: str) -> Any:
    if name == "SkillsMiddleware":  # needs the package langchain
        return import_module(f"{__name__}.middleware").SkillsMiddleware
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
