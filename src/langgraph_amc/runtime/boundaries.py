"""Where particles may be compared: predicates over super-step edges.

Boundary 0 is the state before the first model call; boundary k is reached after k agent steps. A predicate
says whether the edge a particle stands at is such a point.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from langchain_core.outputs import LLMResult
from langchain_core.runnables.config import var_child_runnable_config

from langgraph_amc.errors import ConfigurationError
from langgraph_amc.policy.usage import Pricing, UsageCallback
from langgraph_amc.trajectories.types import Usage


@dataclass(frozen=True, slots=True)
class Edge:
    """The edge between two super-steps of one particle.

    Attributes
    ----------
    step: LangGraph's super-step number.
    next: nodes about to run.
    ran: nodes that ran in the super-step that just ended.
    model_nodes: top-level nodes that have called a model in this particle's run so far.
    state: the values of all state channels.
    """

    step: int
    next: tuple[str, ...]
    ran: tuple[str, ...]
    model_nodes: frozenset[str]
    state: Any


Boundary = Callable[[Edge], bool]


def before_model(edge: Edge) -> bool:
    """The default: the next super-step runs a node that was seen to call a model."""
    return not edge.model_nodes.isdisjoint(edge.next)


def every_step(edge: Edge) -> bool:
    """Every super-step edge."""
    return edge.step >= 0 and "__start__" not in edge.next


def before(*nodes: str) -> Boundary:
    """Before any of these nodes runs."""
    names = frozenset(nodes)

    def before_nodes(edge: Edge) -> bool:
        return not names.isdisjoint(edge.next)

    return before_nodes


def as_boundary(spec: str | Sequence[str] | Boundary | None, nodes: Mapping[str, Any]) -> Boundary:
    """Read a ``boundary=`` argument: ``None``/``"auto"``, ``"step"``, node name(s), or a predicate."""
    if spec is None or spec == "auto":
        return before_model
    if spec == "step" and "step" not in nodes:
        return every_step
    if callable(spec):
        return spec
    names = names_in(spec)
    if unknown := [n for n in names if n not in nodes]:
        known = ", ".join(sorted(n for n in nodes if not n.startswith("__")))
        raise ConfigurationError(f"boundary names no node of this graph: {', '.join(unknown)}; its nodes are {known}")
    return before(*names)


def names_in(spec: Any) -> list[str]:
    """The node names in a ``boundary=`` argument that is not one of the words and no predicate."""
    names = [spec] if isinstance(spec, str) else list(spec) if isinstance(spec, list | tuple | set | frozenset) else []
    if not names or not all(isinstance(name, str) for name in names):
        raise ConfigurationError(f"boundary is 'auto', 'step', node name(s), or a function of an Edge, got {spec!r}")
    return names


def path_of(namespace: str) -> tuple[str, ...]:
    """The path of a checkpoint namespace, which has task ids and numbers repeated calls: ``a:1|2|b:3`` is a/b."""
    return tuple(part.split(":")[0] for part in namespace.split("|") if part and not part.isdigit())


SERVER_STATE = frozenset(
    ("previous_response_id", "use_previous_response_id", "conversation", "conversation_id", "container")
)
"""Arguments by which models continue what a provider keeps: responses, conversations, sandboxes."""


class ModelCalls(UsageCallback):
    """Counts a particle's usage and notes which top-level nodes call a model, and how.

    One handler, deaf to everything but models: handlers cost time at every node that runs.
    """

    run_inline = True
    ignore_chain = True
    ignore_agent = True
    ignore_retriever = True
    ignore_retry = True
    ignore_custom_event = True

    def __init__(
        self,
        nodes: frozenset[str] = frozenset(),
        price: Pricing | None = None,
        told: Callable[..., None] | None = None,
    ) -> None:
        """``told``: is called with the ``usage`` of each call that has ended."""
        super().__init__(price)
        self.nodes = nodes
        self._told = told
        self.paths: frozenset[tuple[str, ...]] = frozenset()
        """Paths of the nodes that have called a model, those inside subgraphs included."""
        self.parameters: dict[str, Any] = {}
        self.cached = False
        """Whether an answer came from a cache of LangChain's."""
        self.threads: dict[str, str] = {}
        """Thread ids of the graphs models were called in, each with the node that did."""
        self.server_state: frozenset[str] = frozenset()
        """Arguments of model calls that name a conversation kept on a server."""

    def take_back(self, usage: Usage, nodes: frozenset[str], parameters: Mapping[str, Any]) -> None:
        """Go on from where a journal left off."""
        self._usage, self.nodes, self.parameters = usage, nodes, dict(parameters)

    def add(self, used: Usage) -> None:
        super().add(used)
        if self._told is not None:
            self._told(usage=used)

    def on_chat_model_start(self, serialized: Any, messages: Any, **kwargs: Any) -> None:
        self._note(kwargs)
        super().on_chat_model_start(serialized, messages, **kwargs)

    def on_llm_start(self, serialized: Any, prompts: Any, **kwargs: Any) -> None:
        self._note(kwargs)
        super().on_llm_start(serialized, prompts, **kwargs)

    def on_llm_end(self, response: LLMResult, **kwargs: Any) -> None:
        self.cached |= any(_from_cache(generation) for answers in response.generations for generation in answers)
        super().on_llm_end(response, **kwargs)

    def _note(self, kwargs: Mapping[str, Any]) -> None:
        metadata = kwargs.get("metadata") or {}
        ns = metadata.get("langgraph_checkpoint_ns") or metadata.get("langgraph_node") or ""
        if path := path_of(str(ns)):
            self.nodes |= {path[0]}
            self.paths |= {path}
        # the metadata's thread id is that of the outermost graph
        innermost = (var_child_runnable_config.get() or {}).get("configurable") or {}
        if thread := innermost.get("thread_id"):
            self.threads.setdefault(str(thread), str(metadata.get("langgraph_node", "")))
        parameters = kwargs.get("invocation_params") or {}
        for given in (parameters, parameters.get("model_kwargs"), parameters.get("extra_body")):
            if given and not SERVER_STATE.isdisjoint(given):
                self.server_state |= {name for name in SERVER_STATE if given.get(name)}
        self.parameters = {k: parameters[k] for k in ("temperature", "seed", "model") if k in parameters}


def _from_cache(generation: Any) -> bool:
    """LangChain marks what its caches answer by a cost of exactly 0."""
    message = getattr(generation, "message", None)  # absent on text generations of plain LLMs
    return (getattr(message, "usage_metadata", None) or {}).get("total_cost") == 0
