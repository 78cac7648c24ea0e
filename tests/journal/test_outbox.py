"""Effects: the intent is on disk before them, and what a dead process began is never begun again."""

from __future__ import annotations

from pathlib import Path

import pytest

from langgraph_amc.runtime.journal import Journal, JournalError
from langgraph_amc.runtime.outbox import Outbox, Recorded
from tests.journal.support import child, fresh, kill, reopened

BEGUN = """
import sys, time
from langgraph_amc.runtime.journal import Journal

run = Journal(sys.argv[1]).open("k", seed=1, about={})
assert run.outbox.begin("sent", "mail", {"to": "a"}) is None
run.outbox.done("sent", {"ok": [1, 2]})
assert run.outbox.begin("refused", "mail", {}) is None
run.outbox.failed("refused", "no such address")
assert run.outbox.begin("under way", "pay", {"amount": 5}) is None
print("ready", flush=True)
time.sleep(60)
"""


def test_what_a_killed_process_began_is_known_and_not_begun_again(url: str) -> None:
    process = child(BEGUN, url)
    with Journal(url) as journal:
        kill(process)
        run = journal.open("k", seed=1, about={})
        box: Outbox = run.outbox
        assert box.begin("sent", "mail", {}) == Recorded("done", result={"ok": [1, 2]})
        assert box.begin("refused", "mail", {}) == Recorded("failed", error="no such address")
        assert box.begin("under way", "pay", {}) == Recorded("unknown")
        assert box.begin("new", "mail", {}) is None
        box.done("under way", "it had gone through")
        run.restore()
        again, _ = reopened(journal, run)
        assert again.outbox.begin("under way", "pay", {}) == Recorded("done", result="it had gone through")
        assert again.outbox.begin("new", "mail", {}) == Recorded("unknown")
        effects = {e.key: e for e in journal.show(run.id).effects}
        assert effects["under way"].arguments == {"amount": 5}
        assert (effects["under way"].ended is None, effects["new"].ended is None) == (False, True)


async def test_on_an_event_loop(journal: Journal) -> None:
    box = fresh(journal).outbox
    assert await box.abegin("a", "mail", {}) is None
    assert await box.abegin("a", "mail", {}) == Recorded("unknown"), "it is under way"
    await box.adone("a", [1])
    assert await box.abegin("a", "mail", {}) == Recorded("done", result=[1])
    assert await box.abegin("b", "mail", {}) is None
    await box.afailed("b", {"why": "down"})
    assert box.begin("b", "mail", {}) == Recorded("failed", error={"why": "down"})


def test_the_intent_is_on_disk_before_the_effect(journal: Journal, path: Path) -> None:
    run = fresh(journal)
    assert run.outbox.begin("a", "mail", {"n": 1}) is None
    with Journal(path) as other:
        [effect] = other.show(run.id).effects
    assert (effect.key, effect.tool, effect.arguments, effect.outcome) == ("a", "mail", {"n": 1}, "unknown")


def test_what_cannot_be_stored_is_not_begun(journal: Journal) -> None:
    box = fresh(journal).outbox
    with pytest.raises(JournalError, match="arguments of mail"):
        box.begin("a", "mail", {"f": lambda: 1})
    assert box.begin("a", "mail", {}) is None
    with pytest.raises(JournalError, match="never begun"):
        box.done("b", 1)
