"""What particles would share by accident: the store."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

from langgraph.store.base import (
    BaseStore,
    GetOp,
    Item,
    ListNamespacesOp,
    Op,
    PutOp,
    Result,
    SearchItem,
    SearchOp,
)

from langgraph_amc.runtime.cells import freeze

Address = tuple[tuple[str, ...], str]


class OverlayStore(BaseStore):
    """A particle's view of the app's store: reads through, keeps its own writes until it is committed.

    Values are copied on the way in and out, because a store in memory gives out the objects it holds.
    Semantic search sees the base store's index only: a particle's own uncommitted writes are matched by
    their filter and listed after the scored items. A namespace that uncommitted deletes have emptied is
    still listed, as `InMemoryStore` does.
    """

    def __init__(self, base: BaseStore) -> None:
        self.base = base
        self.supports_ttl = base.supports_ttl
        self.ttl_config = base.ttl_config
        self._writes: dict[Address, tuple[PutOp, datetime]] = {}

    def fork(self) -> OverlayStore:
        """An independent view with the same uncommitted writes."""
        clone = OverlayStore(self.base)
        clone._writes = dict(self._writes)
        return clone

    def uncommitted(self) -> list[PutOp]:
        """Writes to hand to the base store when this particle has been selected."""
        return [op for op, _ in self._writes.values()]

    def pending(self) -> list[tuple[PutOp, datetime]]:
        """The same with their times, for `take_back`."""
        return list(self._writes.values())

    def take_back(self, writes: Iterable[tuple[PutOp, datetime]]) -> None:
        """Have these uncommitted writes."""
        self._writes = {(op.namespace, op.key): (op, when) for op, when in writes}

    def batch(self, ops: Iterable[Op]) -> list[Result]:
        todo = list(ops)
        reads = [self._read_op(op) for op in todo]
        found = iter(self.base.batch([op for op in reads if op is not None]))
        return [self._answer(op, None if read is None else next(found)) for op, read in zip(todo, reads, strict=True)]

    async def abatch(self, ops: Iterable[Op]) -> list[Result]:
        todo = list(ops)
        reads = [self._read_op(op) for op in todo]
        found = iter(await self.base.abatch([op for op in reads if op is not None]))
        return [self._answer(op, None if read is None else next(found)) for op, read in zip(todo, reads, strict=True)]

    def _read_op(self, op: Op) -> Op | None:
        """What the base store has to be asked so that ``op`` can be answered."""
        if isinstance(op, PutOp):
            return None
        if isinstance(op, GetOp):
            return None if (op.namespace, op.key) in self._writes else op
        if isinstance(op, SearchOp):
            # a write can hide a base item, so ask for as many more as there are writes
            return op._replace(limit=op.offset + op.limit + len(self._writes), offset=0)
        if isinstance(op, ListNamespacesOp):
            return op._replace(limit=op.offset + op.limit + len(self._writes), offset=0)
        raise TypeError(f"unknown store operation {type(op).__name__}")

    def _answer(self, op: Op, found: Any) -> Result:
        if isinstance(op, PutOp):
            self._writes[(op.namespace, op.key)] = (op._replace(value=_copied(op.value)), datetime.now(UTC))
            return None
        if isinstance(op, GetOp):
            own = (op.namespace, op.key) in self._writes
            return self._item((op.namespace, op.key)) if own else _copied(found)
        if isinstance(op, SearchOp):
            kept = [_copied(item) for item in found if (item.namespace, item.key) not in self._writes]
            mine = [item for address in self._writes if (item := self._match(op, address)) is not None]
            return [*kept, *mine][op.offset : op.offset + op.limit]
        return self._namespaces(op, found)

    def _item(self, address: Address) -> Item | None:
        op, when = self._writes[address]
        if op.value is None:
            return None
        return Item(namespace=address[0], key=address[1], value=_copied(op.value), created_at=when, updated_at=when)

    def _match(self, op: SearchOp, address: Address) -> SearchItem | None:
        item = self._item(address)
        if item is None or address[0][: len(op.namespace_prefix)] != op.namespace_prefix:
            return None
        if any(not _compare(item.value.get(key), wanted) for key, wanted in (op.filter or {}).items()):
            return None
        return SearchItem(address[0], address[1], item.value, item.created_at, item.updated_at)

    def _namespaces(self, op: ListNamespacesOp, found: Any) -> list[tuple[str, ...]]:
        names = set(found)
        for (namespace, _), (write, _) in self._writes.items():
            if write.value is None:
                continue
            if all(_matches(condition, namespace) for condition in op.match_conditions or ()):
                names.add(namespace[: op.max_depth] if op.max_depth else namespace)
        return sorted(names)[op.offset : op.offset + op.limit]


def _copied(value: Any) -> Any:
    return freeze(value).thaw()


def _compare(value: Any, wanted: Any) -> bool:
    if isinstance(wanted, dict) and any(k.startswith("$") for k in wanted):
        tests = {
            "$eq": lambda a, b: a == b,
            "$ne": lambda a, b: a != b,
            "$gt": lambda a, b: float(a) > float(b),
            "$gte": lambda a, b: float(a) >= float(b),
            "$lt": lambda a, b: float(a) < float(b),
            "$lte": lambda a, b: float(a) <= float(b),
        }
        return all(tests[k](value, v) for k, v in wanted.items())
    return bool(value == wanted)


def _matches(condition: Any, namespace: tuple[str, ...]) -> bool:
    path = tuple(condition.path)
    part = namespace[: len(path)] if condition.match_type == "prefix" else namespace[-len(path) :]
    return len(part) == len(path) and all(p in ("*", q) for p, q in zip(path, part, strict=True))
