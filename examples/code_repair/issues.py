"""Issues of a small repository, each of two faults; SWE-bench's reward; a value function that reads test results."""

import random
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import combinations
from pathlib import Path

from worktrees import run_tests

from langgraph_amc.tasks import FinishedRun, Task

HERE = Path(__file__).parent


@dataclass(frozen=True, slots=True)
class Fault:
    """One wrong piece of a file, and what a user would say of it."""

    path: str
    right: str
    wrong: str
    report: str


FAULTS = (
    Fault("ledger/money.py", "int(digits[2]) >= 5", "int(digits[2]) > 5", "`to_cents` of 1.005 is 100"),
    Fault("ledger/money.py", "cents = cents + 1", "cents = cents - 1", "`to_cents` of 1.005 is 99"),
    Fault("ledger/money.py", '"-" if cents < 0', '"-" if cents <= 0', "`format_cents` of 0 is -0.00"),
    Fault("ledger/money.py", "extra = cents % parts", "extra = cents // parts", "`split` of 9 by 3 is too much"),
    Fault("ledger/money.py", "k < extra", "k <= extra", "`split` makes a cent too many"),
    Fault("ledger/dates.py", "year % 100 != 0", "year % 100 == 0", "`is_leap` is wrong for 2024"),
    Fault("ledger/dates.py", "year % 400 == 0", "year % 400 != 0", "`is_leap` is wrong for centuries"),
    Fault("ledger/dates.py", "month == 2 and", "month == 2 or", "`days_in_month`: April 2024 has 31 days"),
    Fault("ledger/dates.py", "months // 12", "months % 12", "`add_months` ends in a wrong year"),
    Fault("ledger/dates.py", "months % 12 + 1", "months % 12 - 1", "`add_months` ends in a wrong month"),
    Fault("ledger/report.py", "if cents != 0", "if cents == 0", "`totals` has only categories without money"),
    Fault("ledger/report.py", "start = start + cents", "start = start - cents", "`balances` go the wrong way"),
    Fault("ledger/report.py", "entry[0] <= last", "entry[0] < last", "`within` forgets the last day"),
    Fault("ledger/report.py", "(-abs(entry[2])", "(+abs(entry[2])", "`largest` gives the smallest"),
)


def tasks(test: int = 10) -> Iterator[Task]:
    """Repositories with two faults in different functions."""
    pairs = [(a, b) for a, b in combinations(FAULTS, 2) if a.report.split("`")[1] != b.report.split("`")[1]]
    for number, (first, second) in enumerate(random.Random("issues").sample(pairs, test)):
        files = repository()
        for fault in (first, second):
            assert files[fault.path].count(fault.right) == 1
            files[fault.path] = files[fault.path].replace(fault.right, fault.wrong)
        issue = f"Two things are wrong.\n{first.path}: {first.report}.\n{second.path}: {second.report}."
        message = {"role": "user", "content": f"{issue}\nFiles: {', '.join(files)}"}
        yield Task(f"issue-{number:02}", {"messages": [message], "files": files}, split="test")


def repaired(run: FinishedRun) -> float:
    """1 if the patch makes all failing tests pass and breaks none, hidden tests included, else 0 (SWE-bench's rule)."""
    assert run.task is not None
    before = run.task.input["files"]
    changed = {path: text for path, text in run.output.get("patch", {}).items() if path.startswith("ledger/")}
    return float(not any(run_tests({**before, **changed, **hidden()}).values()))


def tests_pass(transcript: str) -> float:
    """A value function: the share of the visible tests that passed when they were run last; before that, 0.4.

    It reads what the tool says; what the agent says of its tests counts for nothing.
    """
    found = re.findall(r"<\|im_start\|>tool\n(\d+) of ([1-9]\d*) tests pass", transcript)
    if not found:
        return 0.4
    share = int(found[-1][0]) / int(found[-1][1])
    return 0.95 if share == 1 else 0.7 * share**3


@cache
def _read(folder: Path) -> tuple[tuple[str, str], ...]:
    return tuple((p.relative_to(folder).as_posix(), p.read_text()) for p in sorted(folder.rglob("*.py")))


def repository() -> dict[str, str]:
    """The repository without a fault: sources and visible tests."""
    return dict(_read(HERE / "repository"))


def hidden() -> dict[str, str]:
    """Tests that the agent does not see."""
    return {f"tests/{path}": text for path, text in _read(HERE / "hidden")}
