"""What is refused by reading it: cheap, before a process is started, and with a message that a model can act on.

It is no wall, and need not be: what runs is confined by the kernel (`sandbox`).
"""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterator, Sequence

from langgraph_amc.heuristics.errors import HeuristicFailure

LONGEST = 20_000
"""Characters of a source."""
_NO_USE = frozenset(
    {"open", "exec", "eval", "compile", "input", "breakpoint", "globals", "locals", "vars", "getattr", "setattr"}
    | {"delattr", "help", "exit", "quit", "print"}
)
_FENCE = re.compile(r"```(?:python|py)?[ \t]*\n(.*?)```", re.DOTALL)


def code_in(text: str) -> str:
    """The code of a model's answer: its first fenced block, or all of it where nothing is fenced."""
    found = _FENCE.search(text)
    return (found.group(1) if found else text).strip() + "\n"


def screen(source: str, name: str, arguments: Sequence[str], modules: Collection[str]) -> str:
    """The source in a normal form, without comments, to tell equal functions from different ones.

    Raises HeuristicFailure ``refused`` where it is no Python, does not define ``name`` with these arguments, runs
    something when it is loaded, or uses what the sandbox would end it for.
    """
    if len(source) > LONGEST:
        raise HeuristicFailure("refused", f"{len(source):,} characters, more than {LONGEST:,}")
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise HeuristicFailure("refused", f"no Python: {str(error) or 'nested too deeply'}") from error
    defined = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
    if name not in defined:
        raise HeuristicFailure("refused", f"it does not define {name}({', '.join(arguments)})")
    given = defined[name].args
    plain = not (given.vararg or given.kwarg or given.kwonlyargs or given.posonlyargs)
    if not plain or [a.arg for a in given.args] != list(arguments):
        raise HeuristicFailure("refused", f"{name} must take exactly ({', '.join(arguments)})")
    for why in _faults(tree, set(modules)):
        raise HeuristicFailure("refused", why)
    try:
        return ast.unparse(tree) + "\n"
    except RecursionError as error:  # what can be parsed can be too deep for this
        raise HeuristicFailure("refused", "nested too deeply") from error


def _faults(tree: ast.Module, modules: set[str]) -> Iterator[str]:
    for top in tree.body:
        constant = isinstance(top, ast.Assign) and isinstance(top.value, ast.Constant | ast.UnaryOp | ast.Tuple)
        text = isinstance(top, ast.Expr) and isinstance(top.value, ast.Constant)
        if not (isinstance(top, ast.FunctionDef | ast.Import | ast.ImportFrom) or constant or text):
            yield f"line {top.lineno}: beside functions, imports and constants nothing may stand at the top"
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                wanted = {alias.name for alias in names}
            case ast.ImportFrom(module=module, level=level):
                wanted = {"." * level + (module or "")}
            case _:
                wanted = set()
        if foreign := sorted(wanted - modules):
            yield f"it imports {foreign[0]}: it may import {', '.join(sorted(modules)) or 'nothing'}"
        if isinstance(node, ast.Name | ast.Attribute):
            used = node.id if isinstance(node, ast.Name) else node.attr
            if used in _NO_USE or used.startswith("__"):
                yield f"line {node.lineno}: {used} may not be used"
        if isinstance(node, ast.ClassDef | ast.AsyncFunctionDef | ast.Await | ast.Yield | ast.YieldFrom | ast.Global):
            yield f"line {node.lineno}: {type(node).__name__} is not for heuristics"
