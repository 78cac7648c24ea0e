"""Evidence: which runs stand side by side, and edits merged by what stands behind them."""

from __future__ import annotations

from langgraph_amc.skills import Citation, Edit, Proposal, Rejected, gather
from langgraph_amc.skills.merging import contradict, fresh, merge
from langgraph_amc.skills.turns import readable, turns
from tests.skills.runs import run


def test_a_success_stands_beside_a_failure_of_the_same_task() -> None:
    good, bad = run("a", "assistant: weighed", reward=1.0), run("a", "assistant: guessed", reward=0.0)
    only_bad = run("b", "assistant: guessed", reward=0.0)
    only_good = run("c", "assistant: weighed", reward=1.0)
    found = gather([bad, only_bad, good, only_good])
    [contrast] = found.contrasts
    assert (contrast.better, contrast.worse, contrast.shared, contrast.task) == (good, bad, 1, "a")
    assert found.failures == (only_bad,)
    assert found.successes == (only_good,)
    assert not gather([])


def test_siblings_that_split_at_one_boundary_come_first() -> None:
    begun = ("assistant: look", "user: seen")
    good = run("a", *begun, "assistant: weigh", "user: fine", reward=1.0, run_id="amc", particle="p3")
    bad = run("a", *begun, "assistant: guess", "user: no", reward=0.0, run_id="amc", particle="p7", parent="p3")
    stranger = run("a", "assistant: guess", reward=0.0, run_id="other")
    other = (run("b", "assistant: x", reward=1.0), run("b", "assistant: y", reward=-5.0))
    found = gather([*other, stranger, good, bad])
    assert [c.task for c in found.contrasts] == ["a", "b"]
    first = found.contrasts[0]
    assert (first.better.particle, first.worse.particle) == ("p3", "p7")
    assert first.shared == 2
    assert [t.text for t in turns(first.better.segments[first.shared :])] == ["weigh", "fine"]


def test_what_says_nothing_is_left_out_and_what_broke_counts() -> None:
    broken = run("a", reward=None, status="failed", error="ValueError: no scale")
    pruned = run("a", "assistant: x", reward=None, status="pruned")
    unjudged = run("b", "assistant: x", reward=None)
    nobody = run("c", "assistant: x", reward=1.0).__class__("r", "p", ("text",), outcome=1.0)
    good = run("a", "assistant: weighed", reward=1.0)
    found = gather([broken, pruned, unjudged, nobody, good])
    assert [(c.better, c.worse) for c in found.contrasts] == [(good, broken)]
    assert not found.failures
    assert not found.successes


def test_step_rewards_count_and_success_can_be_said() -> None:
    some = run("a", "assistant: x", reward=0.0, rewards=(0.5,), run_id="1")
    none = run("a", "assistant: y", reward=0.0, run_id="2")
    half = run("b", "assistant: x", reward=0.5)
    assert gather([some, none]).contrasts[0].better == some
    assert gather([half]).successes == (half,)
    assert gather([half], success=1.0).failures == (half,)


def test_long_runs_are_shown_by_their_beginning_and_end() -> None:
    long = run("a", f"assistant: {'word ' * 500}", "tool: the end", reward=1.0)
    shown = readable(long.segments, 300)
    assert len(shown) < 360
    assert shown.startswith("[user]\nQuote a.")
    assert shown.endswith("the end")
    assert "characters are left out" in shown
    assert readable(("just a state",), 100) == "just a state"


def cite(*tasks: str) -> tuple[Citation, ...]:
    return tuple(Citation(task, f"run-{task}", "p0") for task in tasks)


def edit(text: str, *tasks: str, section: str = "Weighing", op: str = "add section") -> Edit:
    return Edit(op, "desk", section, text, supports=cite(*tasks))  # type: ignore[arg-type]


def test_equal_edits_are_one_with_all_their_evidence() -> None:
    [only] = merge([edit("Weigh it.", "a"), edit("weigh  it.", "b", "a")])
    assert only.support == 2
    assert not only.contradicts
    [grouped] = merge(
        [edit("Weigh it.", "a", section="One"), edit("Use the scale.", "b", "c", section="Two")], groups=[[0, 1, 9]]
    )
    assert (grouped.text, grouped.support) == ("Use the scale.", 3)


def test_a_group_that_mixes_what_is_different_is_ignored() -> None:
    given = [edit("Weigh it.", "a"), Edit("delete skill", "desk", supports=cite("b"))]
    assert len(merge(given, groups=[[0, 1]])) == 2


def test_of_contradictory_edits_the_better_supported_stays_whatever_the_order() -> None:
    for_it, against = edit("Weigh it.", "a", "b"), edit("Never weigh it.", "c")
    assert contradict(for_it, against)
    for order in ([for_it, against], [against, for_it]):
        [left] = merge(order)
        assert left.text == "Weigh it."
        assert left.opposition == 1


def test_where_evidence_is_even_both_stay_for_the_gate() -> None:
    both = merge([edit("Weigh it.", "a"), edit("Never weigh it.", "b")])
    assert {e.text for e in both} == {"Weigh it.", "Never weigh it."}
    assert all((e.support, e.opposition) == (1, 1) for e in both)


def test_deleting_a_skill_contradicts_whatever_is_done_to_it() -> None:
    delete = Edit("delete skill", "desk", supports=cite("a"))
    assert [e.op for e in merge([delete, edit("Weigh it.", "b", "c")])] == ["add section"]


def test_what_was_rejected_is_not_fresh() -> None:
    rejected = [Rejected(Proposal((edit("Weigh it on the large scale by the door.", "a"),), "x"), "no better")]
    given = [edit("Weigh it on the large scale by the door!", "b", section="Another"), edit("Insure it.", "c")]
    assert [e.text for e in fresh(given, rejected)] == ["Insure it."]
