"""Side effects of tools in particles: who may act on the world, when, and how often."""

from langgraph_amc.runtime.effects.current import current_effect, current_effects
from langgraph_amc.runtime.effects.decorate import effect
from langgraph_amc.runtime.effects.discover import tools_of
from langgraph_amc.runtime.effects.errors import (
    DivergenceError,
    EffectChangedError,
    EffectDeniedError,
    EffectFailedError,
    EffectUnknownError,
    SessionError,
)
from langgraph_amc.runtime.effects.outcome import settle_effect
from langgraph_amc.runtime.effects.policy import EffectRules, Policy, read_effects
from langgraph_amc.runtime.effects.records import EffectRecord, HeldEffect
from langgraph_amc.runtime.effects.scope import EffectScope
from langgraph_amc.runtime.effects.session import Session

__all__ = [
    "DivergenceError",
    "EffectChangedError",
    "EffectDeniedError",
    "EffectFailedError",
    "EffectRecord",
    "EffectRules",
    "EffectScope",
    "EffectUnknownError",
    "HeldEffect",
    "Policy",
    "Session",
    "SessionError",
    "current_effect",
    "current_effects",
    "effect",
    "read_effects",
    "settle_effect",
    "tools_of",
]
