"""Which policy a tool has: what the caller of `wrap` says, else its decorator, else its MCP hints, else a default."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, cast, get_args

from langchain_core.tools import BaseTool, StructuredTool, Tool

from langgraph_amc.errors import ConfigurationError
from langgraph_amc.runtime.effects.discover import Discovery, discover

Policy = Literal["pure", "stateful", "commit", "deny"]
"""pure: run freely. stateful: acts on a `Session` of its particle. commit: hold until its lineage is selected,
then run once. deny: never run."""

POLICIES: tuple[Policy, ...] = get_args(Policy)
Source = Literal["mapping", "decorator", "mcp", "default", "none"]

METADATA = "amc_effect"
"""Key of a decorated tool's metadata."""
ATTRIBUTE = "__amc_effect__"
"""Attribute of a decorated function."""

_READ_ONLY = ("readOnlyHint", "read_only_hint")
_HINTS = (*_READ_ONLY, "destructiveHint", "destructive_hint", "idempotentHint", "idempotent_hint")


def checked(policy: Any, where: str) -> Policy:
    """``policy`` if it is one; raises ConfigurationError."""
    if policy in POLICIES:
        return cast(Policy, policy)
    raise ConfigurationError(f"{where}: a policy is one of {', '.join(POLICIES)}, got {policy!r}")


def decorated(tool: BaseTool) -> Policy | None:
    """The policy `amc.effect` gave a tool or the function it is made of."""
    marked = (tool.metadata or {}).get(METADATA)
    if marked is not None:
        return checked(marked, f"metadata of tool {tool.name!r}")
    if isinstance(tool, StructuredTool | Tool):
        for function in (tool.func, tool.coroutine):
            if function is not None and hasattr(function, ATTRIBUTE):
                return cast(Policy, getattr(function, ATTRIBUTE))
    return None


def hinted(tool: BaseTool) -> Policy | None:
    """The policy an MCP server's annotations suggest; ``None`` where it gave none.

    langchain-mcp-adapters dumps them flat into ``metadata`` (with the field names of the mcp package: camel case
    up to 1.x, snake case since 2); others nest them under ``annotations``.
    """
    metadata = tool.metadata or {}
    nested = metadata.get("annotations")
    hints = {**(nested if isinstance(nested, Mapping) else {}), **metadata}
    if all(hints.get(name) is None for name in _HINTS):
        return None
    # by the MCP specification a tool that does not say it only reads may change things
    return "pure" if any(hints.get(name) is True for name in _READ_ONLY) else "commit"


@dataclass(frozen=True, slots=True)
class EffectRules:
    """The policies of one app.

    Attributes
    ----------
    everything: one policy for every tool, whatever else is said of it.
    named: policies by tool name.
    default: of tools about which nothing is said; ``None``: pure, and reported.
    tools: the app's tools that could be found, by name.
    unmatched: names that are no tool that was found; custom nodes may call tools that cannot be.
    active: whether anything has to be gated; an inactive one changes nothing in any run.
    """

    everything: Policy | None = None
    named: Mapping[str, Policy] = field(default_factory=dict)
    default: Policy | None = None
    tools: Mapping[str, BaseTool] = field(default_factory=dict)
    functions: Mapping[str, Callable[..., Any]] = field(default_factory=dict)
    unmatched: tuple[str, ...] = ()
    active: bool = True

    def of_tool(self, tool: BaseTool) -> Policy:
        return self.classify(tool)[0]

    def classify(self, tool: BaseTool) -> tuple[Policy, Source]:
        """A tool's policy and who said so."""
        return self._first(tool.name, decorated(tool), lambda: hinted(tool))

    def of_function(self, name: str, declared: Policy) -> Policy:
        """The policy of a decorated function that is called directly."""
        return self._first(name, declared, lambda: None)[0]

    def unclassified(self, app: Any = None) -> list[str]:
        """Names of the tools about which nothing was said, not even a default, sorted."""
        tools = self.tools if app is None else discover(app).tools
        return sorted(name for name, tool in tools.items() if self.classify(tool)[1] == "none")

    def _first(self, name: str, declared: Policy | None, hint: Callable[[], Policy | None]) -> tuple[Policy, Source]:
        if self.everything is not None:
            return self.everything, "mapping"
        if name in self.named:
            return self.named[name], "mapping"
        if declared is not None:
            return declared, "decorator"
        hints = hint()
        if hints is not None:
            return hints, "mcp"
        return ("pure", "none") if self.default is None else (self.default, "default")


def read_effects(spec: Policy | Mapping[str, Policy] | None, app: Any) -> EffectRules | None:
    """Read ``effects=`` of `wrap` against an app; ``None`` where nothing is said and no tool can be found.

    Raises ConfigurationError for unknown policies, and for a name that is no tool of the app, unless a custom node
    may call tools that cannot be seen.
    """
    found = discover(app)
    if spec is not None and not isinstance(spec, str | Mapping):
        raise ConfigurationError(f"effects is a policy or a mapping from tool name to policy, got {spec!r}")
    if isinstance(spec, str):
        policy = checked(spec, "effects")
        return EffectRules(policy, {}, None, found.tools, found.functions, (), policy != "pure" or in_use())
    if wrong := [name for name in spec or () if not isinstance(name, str)]:
        raise ConfigurationError(f"effects maps names of tools to policies, and {wrong[0]!r} is no name")
    named = {name: checked(policy, f"effects[{name!r}]") for name, policy in (spec or {}).items()}
    default = named.pop("*", None)
    unmatched = _unmatched(named, found)
    rules = EffectRules(None, named, default, found.tools, found.functions, unmatched)
    if spec is None and not found.tools and not found.functions and not in_use():
        return None
    return EffectRules(None, named, default, found.tools, found.functions, unmatched, _active(rules))


def _unmatched(named: Mapping[str, Policy], found: Discovery) -> tuple[str, ...]:
    known = [*found.tools, *found.functions]
    missing = tuple(name for name in named if name not in known)
    if missing and not found.custom:
        name = missing[0]
        near = difflib.get_close_matches(name, known, n=3)
        hint = f"did you mean {' or '.join(map(repr, near))}?" if near else f"its tools are {', '.join(sorted(known))}"
        raise ConfigurationError(
            f"effects names {name!r}, which is no tool of this app; {hint if known else 'it has none'}"
        )
    return missing


def _active(rules: EffectRules) -> bool:
    said = {*rules.named.values(), rules.default or "pure", *(rules.of_tool(t) for t in rules.tools.values())}
    return bool(said - {"pure"}) or bool(rules.functions) or in_use()


_used: set[str] = set()


def note_use(what: str) -> None:
    """A function was decorated, or a session made, somewhere in this process."""
    _used.add(what)


def in_use() -> bool:
    """Whether code that cannot be found by looking at an app may need a scope."""
    return bool(_used)
