"""Code repair: checkouts that branch by links, tests that cannot leave their sandbox, SWE-bench's reward."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

import pytest

import langgraph_amc as amc
from langgraph_amc.tasks import FinishedRun
from langgraph_amc.tasks.loading import load_app, load_object, load_reward, load_tasks
from tests.examples.readme import EXAMPLES, commands, compared

FOLDER = EXAMPLES / "code_repair"
AGENT, ISSUES, WORKTREES = (str(FOLDER / name) for name in ("agent.py", "issues.py", "worktrees.py"))


def inodes(root: Path) -> dict[str, int]:
    return {p.relative_to(root).as_posix(): p.stat().st_ino for p in root.rglob("*") if p.is_file()}


def test_a_branch_shares_files_until_it_writes() -> None:
    worktree = load_object(f"{WORKTREES}:Worktree")
    one, other = worktree(), worktree()
    one.checkout({"a.py": "a = 1\n", "deep/b.py": "b = 1\n"})
    token = one.snapshot()
    other.restore(token)
    assert inodes(one.root) == inodes(other.root) == inodes(token.path)
    other.write("a.py", "a = 2\n")
    other.write("new.py", "")
    one.write("deep/b.py", "b = 3\n")
    assert one.files() == {"a.py": "a = 1\n", "deep/b.py": "b = 3\n"}
    assert other.files() == {"a.py": "a = 2\n", "deep/b.py": "b = 1\n", "new.py": ""}
    one.restore(token)
    assert one.files() == {"a.py": "a = 1\n", "deep/b.py": "b = 1\n"}
    with pytest.raises(ValueError, match="outside"):
        one.write("../x.py", "")
    folders = [one.root, other.root, token.path]
    one.close()
    other.close()
    del token
    assert not any(map(Path.exists, folders))


def test_every_fault_breaks_a_visible_and_a_hidden_test_and_the_repository_none() -> None:
    run, faults = load_object(f"{WORKTREES}:run_tests"), load_object(f"{ISSUES}:FAULTS")
    whole, hidden = load_object(f"{ISSUES}:repository")(), load_object(f"{ISSUES}:hidden")()
    assert set(run({**whole, **hidden}).values()) == {""}
    for fault in faults:
        broken = whole[fault.path].replace(fault.right, fault.wrong)
        assert broken != whole[fault.path]
        failed = [name for name, wrong in run({**whole, **hidden, fault.path: broken}).items() if wrong]
        assert any("hidden" in name for name in failed), fault
        assert any("hidden" not in name for name in failed), fault


@pytest.mark.parametrize(
    ("code", "told"),
    [
        ("for k in iter(int, 1): pass", "seconds"),
        ("open('/etc/passwd').read()", "open"),
        ("import os\n    os.remove('ledger/money.py')", "os.remove"),
        ("import socket", "import"),
        ("assert 1 == 2", "assert 1 == 2 raised AssertionError"),
        ("nonsense", "NameError"),
    ],
)
def test_what_tests_do_stays_in_the_sandbox(code: str, told: str) -> None:
    wrong = load_object(f"{WORKTREES}:run_tests")({"test_a.py": f"def test_a():\n    {code}\n"})
    assert told in wrong["test_a::test_a"]


def test_code_that_cannot_be_imported_fails_its_tests_and_no_others() -> None:
    files = {
        "a.py": "def f(:",
        "test_a.py": "import a\n\ndef test_a():\n    pass\n",
        "test_b.py": "def test_b():\n    pass\n",
    }
    found = load_object(f"{WORKTREES}:run_tests")(files)
    assert "SyntaxError" in found["test_a::test_a"]
    assert found["test_b::test_b"] == ""


def test_the_reward_is_that_of_swe_bench() -> None:
    repaired, whole = load_reward(f"{ISSUES}:repaired"), load_object(f"{ISSUES}:repository")()
    task = load_tasks(f"{ISSUES}:tasks")[0]
    changed = {path: text for path, text in whole.items() if task.input["files"][path] != text}
    assert 1 <= len(changed) <= 2

    def reward(patch: dict[str, str]) -> float | None:
        return repaired(FinishedRun(task, {"patch": patch}))

    assert reward(changed) == 1.0
    assert reward({}) == 0.0
    assert reward({path: "" for path in whole if path.startswith("tests/")}) == 0.0  # tests are not what is repaired
    assert reward({**changed, "ledger/report.py": "def totals(entries):\n    return {}\n"}) == 0.0  # breaks others


async def test_particles_have_checkouts_of_their_own_and_leave_none_behind() -> None:
    before = set(os.listdir(tempfile.gettempdir()))
    app, task = load_app(f"{AGENT}:graph"), load_tasks(f"{ISSUES}:tasks")[1]
    better = amc.wrap(app, particles=4, value=load_object(f"{ISSUES}:tests_pass"), resample=amc.every(2), seed=3)
    output = await better.ainvoke(task.input, {"recursion_limit": 100})
    assert any(check.resampled for check in output.amc.checks)
    for report in output.amc.particles:
        files: dict[str, str] = dict(task.input["files"])
        said = report.output["messages"]
        done = {m.tool_call_id: m.text for m in said if m.type == "tool"}
        for call in (c for m in said if m.type == "ai" for c in m.tool_calls):
            if call["name"] == "edit" and done[call["id"]].startswith("edited"):
                args: Any = call["args"]
                files[args["path"]] = files[args["path"]].replace(args["old"], args["new"])
        # the patch of a particle is what its own history of edits makes, and nobody else's
        assert report.output["patch"] == {p: t for p, t in files.items() if t != task.input["files"][p]}
    worktree = load_object(f"{AGENT}:worktree")
    assert worktree.get().files() == {**task.input["files"], **output["patch"]}
    left = {
        name for name in set(os.listdir(tempfile.gettempdir())) - before if name.startswith(("amc-work", "amc-snap"))
    }
    assert left == {worktree.get().root.parent.name}


@pytest.mark.parametrize("words", commands("code_repair"))
def test_readme_runs(words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    arms = compared(words, monkeypatch, "--limit", "1", "-n", "4")["arms"]
    assert arms["AMC"]["tokens"] > 0
