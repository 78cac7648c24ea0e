"""The checkpoints of a run's particles as rows: each node, and each frozen value, is stored once.

A node's row holds the values that are new with it; nodes that share a value name it by its number, also where
particles only happen to hold equal ones, as the input that each of them begins with. A list of messages is stored as
the list it grew from, how much of it was kept, and the messages that are new: what a step costs does not depend on
how long the history is.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from langgraph.checkpoint.serde.base import SerializerProtocol
from langgraph.types import Send

from langgraph_amc.runtime.cells import Cell, MessageList, Packed, Shared, is_message_list
from langgraph_amc.runtime.journal.coding import dump_parts, pack
from langgraph_amc.runtime.journal.messages import to_plain
from langgraph_amc.runtime.journal.records import common
from langgraph_amc.runtime.nodes import Log, Node, Write
from langgraph_amc.runtime.saver import ParticleSaver

VALUE, LIST, SEND, SENDS, MESSAGE = 0, 1, 2, 3, 4
TASKS = "__pregel_tasks"
"""LangGraph's channel of Send packets."""
BIG = 4000
"""Bytes from which it is worth looking whether a written value is stored already."""
INPUT = -1
"""Number of the value that is the run's input."""
Content = bytes | tuple[bytes, ...]
"""What a value consists of: of a list of messages, each one's."""
NodeRow = tuple[int, str, bytes, None]
"""(number, form and bytes of the body, no edge of its own: the body holds it)"""
EdgeRow = tuple[int, bytes]
"""(number, the writes on an edge that grew)"""


@dataclass(slots=True)
class Stored:
    """A node that is in the database, with what it looked like there."""

    no: int
    node: Node
    edge: tuple[Write, ...]
    cells: list[int] = field(default_factory=list)
    """Identities of the values that its row holds, or names and another's row holds."""
    contents: list[Content] = field(default_factory=list)
    """Of the values that its row was the first to hold."""
    lenders: set[int] = field(default_factory=set)
    """Identities of nodes that are no ancestors, and whose rows hold values of this one."""


@dataclass(frozen=True, slots=True)
class Stand:
    """Where a particle's saver stood when it was written."""

    log: Log | None
    heads: tuple[Node, ...]
    fresh: tuple[Stored, ...]
    """Nodes whose edges may still grow: LangGraph saves some writes after the checkpoint they led to."""


class Tree:
    """Which nodes and values of one run are stored, and under which numbers."""

    def __init__(self) -> None:
        self.nodes: dict[int, Stored] = {}
        self.cells: dict[int, tuple[Cell, int]] = {}
        self.equal: dict[Content, tuple[int, int]] = {}
        """By content: number of the value, and identity of the node whose row holds it."""
        self.input: bytes | None = None
        """The run's input as a particle has it, which is stored with the run."""
        self.next_node = self.next_cell = 0
        self.stands: dict[str, Stand] = {}

    def write(self, particle: str, saver: ParticleSaver) -> tuple[list[NodeRow], list[EdgeRow], bytes]:
        """Rows of the nodes that are new, edges that grew, and the state of the saver itself.

        Raises UnserialisableStateError, having noted nothing.
        """
        state = saver._s  # the journal is the one other place that knows how a saver keeps its state
        serde: SerializerProtocol = saver.serde
        before = self.stands.get(particle)
        new: list[Stored] = []
        rows: list[NodeRow] = []
        try:
            for previous, node in _unknown(state.log, self.nodes):
                self._family(serde, node, True, previous, rows, new)
            for head in list(state.heads.values()):
                self._family(serde, head, False, None, rows, new)
            edges = self._grown_edges(serde, () if before is None else before.fresh)
            blob = self._saver(serde, saver)
        except Exception:
            for stored in new:
                self._drop(stored)
            raise
        self.stands[particle] = Stand(state.log, tuple(state.heads.values()), tuple(new))
        return rows, edges, blob

    def numbers(self, output: Any, saver: ParticleSaver) -> dict[str, int]:
        """The lists of messages in a particle's output that its newest checkpoint holds: their numbers, by name."""
        if type(output) is not dict:
            return {}
        cells = {name: saver.holds(name, part) for name, part in output.items() if is_message_list(part)}
        return {name: self.cells[id(cell)][1] for name, cell in cells.items() if id(cell) in self.cells}

    def value(self, number: int) -> Any:
        """A stored value as a fresh object."""
        return next(cell for cell, known in self.cells.values() if known == number).thaw()

    def lend(self, stored: Stored, number: int, content: Content | None) -> None:
        """Others that hold an equal value shall name the one in this row."""
        if content is not None and content not in self.equal:
            self.equal[content] = (number, id(stored.node))
            stored.contents.append(content)

    def forget(self, particle: str) -> bool:
        """A particle needs its nodes no longer; whether it had any."""
        return self.stands.pop(particle, None) is not None

    def sweep(self) -> list[int]:
        """Numbers of the nodes that no particle needs any longer; they are forgotten."""
        needed: set[int] = set()
        logs: set[int] = set()
        for stand in self.stands.values():
            log = stand.log
            while log is not None and id(log) not in logs:
                logs.add(id(log))
                needed.update(_line(log.node, needed))
                log = log.previous
            for head in stand.heads:
                needed.update(_line(head, needed))
        fresh = set(needed)
        while fresh:
            lent = {lender for key in fresh if key in self.nodes for lender in self.nodes[key].lenders}
            before = set(needed)
            for key in lent - needed:
                if key in self.nodes:
                    needed.update(_line(self.nodes[key].node, needed))
            fresh = needed - before
        gone = [stored for key, stored in self.nodes.items() if key not in needed]
        for stored in gone:
            self._drop(stored)
        return [stored.no for stored in gone]

    # -- inside ----------------------------------------------------------------------------------

    def _drop(self, stored: Stored) -> None:
        self.nodes.pop(id(stored.node), None)
        for key in stored.cells:
            del self.cells[key]
        for content in stored.contents:
            del self.equal[content]

    def _family(
        self,
        serde: SerializerProtocol,
        node: Node,
        logged: bool,
        previous: Node | None,
        rows: list[NodeRow],
        new: list[Stored],
    ) -> None:
        """Store a node after its parents, the eldest of which may have been adopted from the app's own saver."""
        line: list[Node] = []
        older: Node | None = node
        while older is not None and id(older) not in self.nodes:
            line.append(older)
            older = older.parent
        for member in reversed(line):
            mine = member is node
            rows.append(self._node(serde, member, logged and mine, previous if mine else None, new))

    def _node(
        self, serde: SerializerProtocol, node: Node, logged: bool, previous: Node | None, new: list[Stored]
    ) -> NodeRow:
        stored = Stored(self.next_node, node, tuple(node.edge.values()))
        self.next_node += 1
        new.append(stored)
        parent = {} if node.parent is None else node.parent.values
        cells: list[list[Any]] = []
        known = self.cells
        values = {
            name: known[id(cell)][1] if id(cell) in known else self._cell(cell, parent.get(name), cells, stored)
            for name, cell in node.values.items()
        }
        writes = [[w.task_id, w.channel, w.task_path, w.index, *self._written(w, cells, stored)] for w in stored.edge]
        body = [
            *node.key,
            node.id,
            None if node.parent is None else self.nodes[id(node.parent)].no,
            node.external_parent,
            logged,
            None if previous is None else self.nodes[id(previous)].no,
            [node.checkpoint, node.metadata, node.new_versions],
            values,
            cells,
            writes,
        ]
        # one call for all of it: most of what a serialiser costs is being called
        dumped = dump_parts(serde, body, lambda: _named(node))
        self.nodes[id(node)] = stored
        return stored.no, *dumped, None

    def _cell(self, cell: Cell, base: Cell | None, rows: list[list[Any]], stored: Stored) -> int:
        """The number of a value; where it is new, its entry is added to ``rows``."""
        if (known := self.cells.get(id(cell))) is not None:
            return known[1]
        grown = isinstance(cell, MessageList) and base is not None and id(base) in self.cells
        content = None if grown else content_of(cell)
        equal = None if content is None else self.equal.get(content)
        if content is not None and content == self.input:
            number = INPUT
        elif equal is not None:
            number, lender = equal
            if lender != id(stored.node):
                stored.lenders.add(lender)
        else:
            number = self.next_cell
            self.next_cell += 1
            rows.append([number, *self._entry(cell, base, rows, stored)])
            self.lend(stored, number, content)
        self.cells[id(cell)] = (cell, number)
        stored.cells.append(id(cell))
        return number

    def _written(self, write: Write, rows: list[list[Any]], stored: Stored) -> tuple[Any, int | None]:
        """A written value as it is, or the number of one that others may have too, or that takes a form of its own."""
        cell = write.cell
        if (
            isinstance(cell, MessageList)
            or write.channel == TASKS
            or (isinstance(cell, Packed) and len(cell.data) > BIG)
        ):
            return None, self._cell(cell, None, rows, stored)
        return cell.thaw(), None

    def _entry(self, cell: Cell, base: Cell | None, rows: list[list[Any]], stored: Stored) -> list[Any]:
        if isinstance(cell, MessageList):
            earlier = self.cells.get(id(base)) if isinstance(base, MessageList) else None
            kept = common(base.items, cell.items) if earlier is not None and isinstance(base, MessageList) else 0
            added = [self._cell(item, None, rows, stored) for item in cell.items[kept:]]
            return [LIST, earlier[1] if earlier is not None and kept else None, kept, added]
        value = cell.thaw()
        if (plain := to_plain(value)) is not None:
            return [MESSAGE, *plain]
        if _is_send(value):  # serialisers take long to see what it is
            return [SEND, value.node, value.arg]
        if type(value) is list and value and all(map(_is_send, value)):
            return [SENDS, [[v.node, v.arg] for v in value]]
        return [VALUE, value]

    def _grown_edges(self, serde: SerializerProtocol, fresh: Iterable[Stored]) -> list[EdgeRow]:
        rows: list[EdgeRow] = []
        for stored in fresh:
            if (now := tuple(stored.node.edge.values())) != stored.edge and id(stored.node) in self.nodes:
                rows.append((stored.no, _dump_writes(serde, now)))
                stored.edge = now
        return rows

    def _saver(self, serde: SerializerProtocol, saver: ParticleSaver) -> bytes:
        state = saver._s
        heads = [[*key, self.nodes[id(node)].no] for key, node in list(state.heads.items())]
        pending = [
            [*where, _dump_writes(serde, tuple(writes.values()))]
            for where, writes in list(state.pending.items())
            if writes
        ]
        log = None if state.log is None else self.nodes[id(state.log.node)].no
        return pack([heads, pending, log, saver.bound])


def content_of(cell: Cell) -> Content | None:
    """``None`` of what is known by its identity only."""
    if isinstance(cell, Packed):
        return cell.data
    if isinstance(cell, Shared):
        return None
    items = tuple([item.data for item in cell.items if isinstance(item, Packed)])
    return items if len(items) == len(cell.items) else None


def _unknown(log: Log | None, known: dict[int, Stored]) -> list[tuple[Node | None, Node]]:
    """Logged nodes that are not stored yet, oldest first, each with the one logged before it."""
    found: list[tuple[Node | None, Node]] = []
    while log is not None and id(log.node) not in known:
        previous = log.previous
        found.append((None if previous is None else previous.node, log.node))
        log = previous
    found.reverse()
    return found


def _line(node: Node | None, seen: set[int]) -> Iterable[int]:
    """Identities of a node and its ancestors up to those that were seen."""
    while node is not None and id(node) not in seen:
        yield id(node)
        node = node.parent


def _is_send(value: Any) -> bool:
    return type(value) is Send and getattr(value, "timeout", None) is None  # LangGraph had none at first


def _writes(writes: Sequence[Write]) -> list[list[Any]]:
    return [[w.task_id, w.channel, w.task_path, w.index, w.cell.thaw()] for w in writes]


def _dump_writes(serde: SerializerProtocol, writes: Sequence[Write]) -> bytes:
    return pack(dump_parts(serde, _writes(writes), lambda: _named_writes(writes)))


def _named(node: Node) -> Iterator[tuple[str, Any]]:
    """The parts of a node, each under the name that an error gives it."""
    for name, cell in node.values.items():
        yield f"the value of channel {name!r}", cell.thaw()
    yield from _named_writes(tuple(node.edge.values()))
    yield "the metadata of a checkpoint", [node.checkpoint, node.metadata, node.new_versions]


def _named_writes(writes: Sequence[Write]) -> Iterator[tuple[str, Any]]:
    for write in writes:
        yield f"a write to channel {write.channel!r}", write.cell.thaw()
