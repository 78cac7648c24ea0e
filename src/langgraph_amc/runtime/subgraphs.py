"""Points inside subgraphs: paths of nodes such as ``worker/model``, and what a saved checkpoint runs next.

A checkpoint tells which nodes come next without running anything: a node is due if a channel that triggers it
is newer than what the node has seen, and packets that were sent lie in a channel of their own.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from langchain_core.runnables import RunnableLambda, RunnableSequence
from langchain_core.runnables.utils import get_function_nonlocals
from langgraph.channels.untracked_value import UntrackedValue
from langgraph.pregel import Pregel

from langgraph_amc.errors import ConfigurationError
from langgraph_amc.runtime.boundaries import Boundary, Edge, as_boundary, names_in
from langgraph_amc.runtime.boundaries import path_of as path_of
from langgraph_amc.runtime.effects import tools_of
from langgraph_amc.runtime.nodes import Node

Path = tuple[str, ...]
"""Names of the nodes that lead to a subgraph, outermost first; () is the app itself."""

ANYWHERE = "**"
SENT = "__pregel_tasks"
_BRANCH, _JOIN = "branch:to:", "join:"


@dataclass(frozen=True, slots=True)
class Points:
    """Where particles are held inside subgraphs.

    Attributes
    ----------
    nodes: inner nodes before which a particle is held, by the path of their subgraph.
    anywhere: nodes before which it is held in every subgraph.
    graphs: compiled graphs by path, the app's own included; a graph that only a node's code knows is missing.
    """

    nodes: Mapping[Path, frozenset[str]]
    anywhere: frozenset[str]
    graphs: Mapping[Path, Any]

    def held(self, path: Path) -> frozenset[str]:
        """Nodes of the subgraph at ``path`` before which a particle is held."""
        return self.nodes.get(path, frozenset()) | self.anywhere


def read_boundary(spec: Any, app: Any) -> tuple[Boundary, Points | None]:
    """Read a ``boundary=`` argument that may name nodes inside subgraphs; raises ConfigurationError."""
    if spec in (None, "auto") or callable(spec) or (spec == "step" and "step" not in app.nodes):
        return as_boundary(spec, app.nodes), None
    names = names_in(spec)
    graphs = dict(_graphs(app))
    inner = [n for n in names if "/" in n and n not in app.nodes]
    for name in [n for n in names if n not in inner and n not in app.nodes]:
        if inside := sorted("/".join((*path, name)) for path, graph in graphs.items() if name in graph.nodes):
            raise ConfigurationError(
                f"boundary {name!r} is a node of a subgraph, which is named by its path: boundary={inside[0]!r}"
                + (f" or '{ANYWHERE}/{name}'" if len(inside) > 1 else "")
            )
    if not inner:
        return as_boundary(names, app.nodes), None
    paths = [tuple(name.split("/")) for name in inner]
    anywhere = frozenset(path[1] for path in paths if path[0] == ANYWHERE and len(path) == 2)
    _check_anywhere(anywhere, app)
    nodes: dict[Path, frozenset[str]] = {}
    for *lead, last in [path for path in paths if path[0] != ANYWHERE or len(path) != 2]:
        _check_path((*lead, last), graphs)
        nodes[tuple(lead)] = nodes.get(tuple(lead), frozenset()) | {last}
    points = Points(nodes, anywhere, graphs)
    _check_graphs(app, points)
    outer = [n for n in names if n not in inner] + [n for n in sorted(anywhere) if n in app.nodes]
    return (as_boundary(outer, app.nodes) if outer else nowhere), points


def nowhere(edge: Edge) -> bool:
    """No edge of the app itself."""
    return False


def next_nodes(saved: Node, graph: Any | None) -> list[str]:
    """Nodes the next super-step runs, once per task; without the compiled graph, by LangGraph's channel names."""
    due = [
        name
        for name, channels in _triggers(saved, graph).items()
        if any(_is_new(saved, name, c) and _is_available(saved, c, graph) for c in channels)
    ]
    sent = saved.values.get(SENT)
    return due if sent is None else [*due, *(packet.node for packet in sent.thaw())]


# -- inside --------------------------------------------------------------------------------------------


def _triggers(saved: Node, graph: Any | None) -> Mapping[str, Iterable[str]]:
    if graph is not None:
        return {name: node.triggers for name, node in graph.nodes.items()}
    found: dict[str, list[str]] = {}
    for channel in saved.checkpoint["channel_versions"]:
        if channel.startswith((_BRANCH, _JOIN)):
            found.setdefault(channel.rsplit(":", 1)[1], []).append(channel)
    return found


def _is_new(saved: Node, name: str, channel: str) -> bool:
    version = saved.checkpoint["channel_versions"].get(channel)
    seen = saved.checkpoint["versions_seen"].get(name, {}).get(channel)
    return version is not None and channel in saved.values and (seen is None or version > seen)


def _is_available(saved: Node, channel: str, graph: Any | None) -> bool:
    """A join is saved while it still waits for some of its nodes."""
    value = saved.values[channel].thaw()
    if graph is not None:
        return bool(graph.channels[channel].from_checkpoint(value).is_available())
    return not channel.startswith(_JOIN) or set(value) >= set(channel.split(":")[1].split("+"))


def _graphs(graph: Any, path: Path = ()) -> Iterator[tuple[Path, Any]]:
    """Compiled graphs by path; of a node that knows several, none: a namespace does not tell which one runs."""
    yield path, graph
    for name, node in graph.nodes.items():
        found = list(_called(node.bound))
        if len(found) == 1 and name not in path[-3:]:  # a graph may call itself
            yield from _graphs(found[0], (*path, name))


def _called(candidate: Any) -> Iterator[Any]:
    """Compiled graphs that a node is, or that its function refers to; LangGraph's own kinds are known by name only."""
    if isinstance(candidate, Pregel):
        yield candidate
    elif isinstance(candidate, RunnableLambda):
        for part in candidate.deps:
            yield from _called(part)
    elif isinstance(candidate, RunnableSequence) or type(candidate).__name__ == "RunnableSeq":
        for part in candidate.steps:
            yield from _called(part)
    elif type(candidate).__name__ == "RunnableCallable":
        function: Callable[..., Any] | None = candidate.func or candidate.afunc
        if function is not None:
            yield from _referred(function)


def _referred(function: Callable[..., Any]) -> Iterator[Any]:
    for part in get_function_nonlocals(function):
        yield from _called(getattr(part, "__self__", part))


def _known(app: Any) -> Iterator[Any]:
    """Every compiled graph below an app that can be found, also those that its tools call."""
    seen: set[int] = set()
    todo = [app]
    while todo:
        graph = todo.pop()
        if id(graph) in seen:
            continue
        seen.add(id(graph))
        yield graph
        for node in graph.nodes.values():
            todo.extend(_called(node.bound))
        for tool in tools_of(graph).values():
            for name in ("func", "coroutine"):
                if inspect.isfunction(function := getattr(tool, name, None)):  # a tool of any class
                    todo.extend(_referred(inspect.unwrap(function)))


def _check_anywhere(names: Iterable[str], app: Any) -> None:
    graphs = list(_known(app))
    for name in names:
        if not name:
            raise ConfigurationError(f"boundary '{ANYWHERE}/' names no node: write it as '{ANYWHERE}/model'")
        if len(graphs) > 1 and not any(name in graph.nodes for graph in graphs):
            known = ", ".join(sorted({n for graph in graphs for n in graph.nodes if not n.startswith("__")}))
            raise ConfigurationError(
                f"boundary '{ANYWHERE}/{name}': neither this graph nor its subgraphs have a node {name!r}; their nodes "
                f"are {known}. Give the path of a graph that only a node's code knows, as 'node/{name}'"
            )


def _check_path(path: Path, graphs: Mapping[Path, Any]) -> None:
    if not all(path):
        raise ConfigurationError(f"boundary {'/'.join(path)!r} is no path of nodes: write it as 'worker/model'")
    for depth, name in enumerate(path):
        graph = graphs.get(path[:depth])
        if graph is None:
            return  # known only to a node's code: its names show when it runs
        if name not in graph.nodes:
            known = ", ".join(sorted(n for n in graph.nodes if not n.startswith("__")))
            where = f"the subgraph {'/'.join(path[:depth])!r}" if depth else "this graph"
            raise ConfigurationError(
                f"boundary {'/'.join(path)!r}: {where} has no node {name!r}; its nodes are {known}"
            )


def _check_graphs(app: Any, points: Points) -> None:
    for path, graph in points.graphs.items():
        name = "/".join(path)
        for node_name, node in graph.nodes.items():
            if any(g.checkpointer is False for g in _called(node.bound)):
                raise ConfigurationError(
                    f"node {'/'.join((*path, node_name))!r} runs a graph compiled with checkpointer=False, beside "
                    "which LangGraph cannot hold a run inside a subgraph: compile it without that argument"
                )
        if graph.step_timeout is not None and any(p[: len(path)] == path for p in points.nodes):
            raise ConfigurationError("step_timeout goes on while a particle is held inside a subgraph: leave it out")
        if path and (graph.interrupt_before_nodes or graph.interrupt_after_nodes):
            raise ConfigurationError(
                f"subgraph {name!r} has static breakpoints, which a particle branched inside it would step over: "
                "use interrupt() in its nodes instead"
            )
        if path and points.held(path) and (lost := _untracked(graph)):
            raise ConfigurationError(
                f"subgraph {name!r} keeps values that no checkpoint holds ({', '.join(lost)}), so a particle cannot "
                "be branched inside it: take the node itself as boundary, or leave out what keeps them"
            )


def _untracked(graph: Any) -> Sequence[str]:
    return sorted(name for name, channel in graph.channels.items() if isinstance(channel, UntrackedValue))
