"""From rows back to savers: nodes and values are shared among the particles again, as they were."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from langgraph.checkpoint.serde.base import SerializerProtocol
from langgraph.types import Send

from langgraph_amc.runtime.cells import Cell, MessageList, freeze
from langgraph_amc.runtime.journal.coding import unpack
from langgraph_amc.runtime.journal.messages import from_plain
from langgraph_amc.runtime.journal.tree import INPUT, LIST, MESSAGE, SEND, SENDS, Stand, Stored, Tree, content_of
from langgraph_amc.runtime.nodes import Log, Node, Write, Writes
from langgraph_amc.runtime.saver import ParticleSaver


@dataclass(frozen=True, slots=True)
class Rebuilt:
    """The savers by particle, and the tree that knows what of them is stored."""

    savers: Mapping[str, ParticleSaver]
    tree: Tree


def rebuild(
    rows: Iterable[Any],
    states: Mapping[str, bytes],
    input: Any,
    blank: Callable[[], ParticleSaver],
    serde: SerializerProtocol,
) -> Rebuilt:
    """Savers from node rows in the order of their numbers and the savers' own states; ``blank`` makes empty ones."""
    builder = _Builder(serde)
    builder.cells[INPUT] = freeze(input)
    for row in rows:
        builder.add(row.no, serde.loads_typed((row.type, bytes(row.body))), row.edge)
    tree = builder.tree
    savers: dict[str, ParticleSaver] = {}
    for name, state in states.items():
        saver = savers[name] = builder.saver(unpack(state), blank())
        tree.stands[name] = Stand(saver._s.log, tuple(saver._s.heads.values()), ())
    return Rebuilt(savers, tree)


class _Builder:
    def __init__(self, serde: SerializerProtocol) -> None:
        self.serde = serde
        self.tree = Tree()
        self.nodes: dict[int, Node] = {}
        self.logs: dict[int, Log] = {}
        self.cells: dict[int, Cell] = {}
        self.home: dict[int, int] = {}
        """By number of a value, the identity of the node whose row holds it."""
        self.lenders: set[int] = set()

    def add(self, no: int, body: Sequence[Any], edge: bytes | None) -> None:
        thread, ns, node_id, parent, external, logged, previous, main, values, cells, writes = body
        self.lenders = set[int]()
        stored_cells = [self._cell(*cell) for cell in cells]
        checkpoint, metadata, new_versions = main
        node = Node(
            (thread, ns),
            node_id,
            None if parent is None else self.nodes[parent],
            external,
            checkpoint,
            {name: self._known(number) for name, number in values.items()},
            metadata,
            new_versions,
            self._own_writes(writes) if edge is None else self._load_writes(edge),
        )
        self.nodes[no] = node
        if logged:
            self.logs[no] = Log(node, None if previous is None else self.logs[previous])
        stored = Stored(no, node, tuple(node.edge.values()), stored_cells, lenders=self.lenders)
        self.tree.nodes[id(node)] = stored
        self.tree.next_node = no + 1
        for (_, kind, *rest), key in zip(cells, stored_cells, strict=True):
            cell, number = self.tree.cells[key]
            self.home[number] = id(node)
            grown = kind == LIST and rest[0] is not None
            self.tree.lend(stored, number, None if grown else content_of(cell))

    def saver(self, state: Sequence[Any], saver: ParticleSaver) -> ParticleSaver:
        heads, pending, log, bound = state
        saver.bound = bound
        saver._s.heads = {(thread, ns): self.nodes[no] for thread, ns, no in heads}
        saver._s.pending = {(thread, ns, at): self._load_writes(writes) for thread, ns, at, writes in pending}
        saver._s.log = None if log is None else self.logs[log]
        return saver

    def _cell(self, number: int, kind: int, *rest: Any) -> int:
        if kind == LIST:
            base, kept, added = rest
            first = () if base is None else self.cells[base].items[:kept]  # type: ignore[union-attr]
            cell: Cell = MessageList((*first, *(self._known(item) for item in added)))  # type: ignore[arg-type]
        elif kind == MESSAGE:
            cell = freeze(from_plain(rest))
        elif kind == SEND:
            cell = freeze(Send(*rest))
        elif kind == SENDS:
            cell = freeze([Send(*send) for send in rest[0]])
        else:
            cell = freeze(rest[0])
        self.cells[number] = cell
        self.tree.cells[id(cell)] = (cell, number)
        self.tree.next_cell = max(self.tree.next_cell, number + 1)
        return id(cell)

    def _known(self, number: int) -> Cell:
        if (home := self.home.get(number)) is not None:  # None: in the row being read
            self.lenders.add(home)
        return self.cells[number]

    def _own_writes(self, rows: Iterable[Sequence[Any]]) -> Writes:
        return {
            (task_id, index): Write(
                task_id, channel, freeze(value) if number is None else self._known(number), path, index
            )
            for task_id, channel, path, index, value, number in rows
        }

    def _load_writes(self, packed: bytes) -> Writes:
        kind, data = unpack(packed)
        return _writes(self.serde.loads_typed((kind, data)))


def _writes(rows: Iterable[Sequence[Any]]) -> Writes:
    return {
        (task_id, index): Write(task_id, channel, freeze(value), path, index)
        for task_id, channel, path, index, value in rows
    }
