"""Edits: sections, what fits and what does not, what is the same in other words, and the diff that is shown."""

from __future__ import annotations

from dataclasses import replace

import pytest

from langgraph_amc.skills import Citation, Edit, Proposal, Skill, SkillError, SkillLibrary, apply
from langgraph_amc.skills.diff import markdown, unified
from langgraph_amc.skills.edits import alike, fitted
from langgraph_amc.skills.sections import join, split
from langgraph_amc.skills.types import Op

BODY = "Intro.\n\n# Steps\n\nWeigh first.\n\n```bash\n# not a heading\n```\n\n## Tone ##\n\nBe kind."
LIBRARY = SkillLibrary((Skill("desk", "How to quote.", BODY),))
ADD = Edit("add section", "desk", "Insurance", "Insure it.")


def body(library: SkillLibrary) -> str:
    return library.get("desk").body


def test_sections_are_what_stands_between_headings_outside_code() -> None:
    assert [(s.level, s.title) for s in split(BODY)] == [(0, ""), (1, "Steps"), (2, "Tone")]
    assert "# not a heading" in split(BODY)[1].text
    assert split(join(split(BODY))) == split(BODY)
    assert split("") == ()
    assert [s.title for s in split("~~~\n# a\n```\n# b\n~~~\n# c")] == ["", "c"]


def test_a_section_is_added_replaced_and_deleted() -> None:
    added = apply(LIBRARY, [ADD])
    assert body(added).endswith("Be kind.\n\n## Insurance\n\nInsure it.")
    replaced = apply(added, [Edit("replace section", "desk", "insurance", "Insure it twice.")])
    assert body(replaced).endswith("## Insurance\n\nInsure it twice.")
    assert body(apply(replaced, [Edit("delete section", "desk", "INSURANCE")])) == BODY == join(split(BODY))
    first = apply(LIBRARY, [Edit("replace section", "desk", "", "Another intro.")])
    assert body(first).startswith("Another intro.\n\n# Steps")


def test_a_skill_is_created_and_deleted() -> None:
    one = Edit("create skill", "air", "Wings", "Flap.", "How to fly.")
    made = apply(LIBRARY, [one])
    assert made.get("air") == Skill("air", "How to fly.", "## Wings\n\nFlap.")
    whole = apply(LIBRARY, [Edit("create skill", "air", "", "# A\n\nb\n", "How to fly.")])
    assert whole.get("air").body == "# A\n\nb"
    assert apply(made, [Edit("delete skill", "air")]) == LIBRARY


@pytest.mark.parametrize(
    ("edit", "said"),
    [
        (Edit("add section", "air", "Wings", "Flap."), "no skill 'air'"),
        (Edit("add section", "desk", "tone", "Flap."), "already has a section"),
        (Edit("replace section", "desk", "Wings", "Flap."), "it has '', 'Steps', 'Tone'"),
        (Edit("delete section", "desk", "Wings"), "no section 'Wings'"),
        (Edit("add section", "desk", "Wings", "  \n"), "no text"),
        (Edit("add section", "desk", "Wings", "a\n## Tail\nb"), "no headings"),
        (Edit("create skill", "desk", "", "x", "d"), "already a skill"),
        (Edit("create skill", "Desk!", "", "x", "d"), "a-z, 0-9"),
        (Edit("create skill", "air", "", "x", "d <b>"), "angle bracket"),
        (Edit("delete skill", "air"), "no skill 'air'"),
        (Edit("replace section", "desk", "Tone", "Be kind."), "changes nothing"),
    ],
)
def test_an_edit_that_does_not_fit_is_an_error_and_never_skipped(edit: Edit, said: str) -> None:
    with pytest.raises(SkillError, match=said):
        apply(LIBRARY, [ADD, edit])


@pytest.mark.parametrize("op", ["add section", "replace section", "create skill"])
def test_an_open_code_block_would_hide_what_follows(op: Op) -> None:
    edit = Edit(op, "new" if op == "create skill" else "desk", "Steps", "Run it:\n```sh\nweigh", "How.")
    library = LIBRARY if op != "add section" else SkillLibrary((Skill("desk", "How.", "Text."),))
    with pytest.raises(SkillError, match="does not close"):
        apply(library, [edit])
    whole = replace(edit, section="", text="## Steps\n\n~~~\n```\n") if op == "create skill" else edit
    with pytest.raises(SkillError, match="does not close"):
        apply(library, [whole])
    assert "weigh" in apply(library, [replace(edit, text=f"{edit.text}\n```")]).text()


def test_what_is_no_edit_is_refused_when_it_is_made() -> None:
    for name in ("skill", "section", "text", "description", "reason"):
        with pytest.raises(SkillError, match=f"the {name} of an edit is text"):
            replace(ADD, **{name: None})  # type: ignore[arg-type]
    with pytest.raises(SkillError, match="made of edits"):
        Proposal(("weigh it",), "x")  # type: ignore[arg-type]


def test_an_unknown_operation_is_refused() -> None:
    with pytest.raises(SkillError, match="add section, replace section"):
        Edit("move", "desk")  # type: ignore[arg-type]


def test_an_edit_follows_the_library_it_was_not_made_for() -> None:
    create = Edit("create skill", "air", "Wings", "Flap.", "How to fly.")
    there = apply(LIBRARY, [replace(create, section="Tail", text="Wag.")])
    assert fitted(there, create).op == "add section"
    assert fitted(LIBRARY, replace(create, op="add section")).op == "create skill"
    assert fitted(LIBRARY, create) == create
    with pytest.raises(SkillError):
        fitted(LIBRARY, replace(create, op="add section", description=""))


def test_edits_are_the_same_whatever_their_spaces_case_or_reason() -> None:
    one = Edit("add section", "desk", "Insurance", "Insure the parcel before you send it.", reason="a")
    assert one.key == replace(one, text=" insure the  parcel\nbefore you send it. ", reason="b").key
    assert one.key == replace(one, op="create skill", description="d").key
    assert one.key != replace(one, text="Weigh the parcel before you send it.").key
    assert one.key != Edit("delete section", "desk", "Insurance").key
    long = "Before you send a parcel that is worth more than a hundred, insure it, and write the number down"
    assert alike(replace(one, text=long), replace(one, section="Other", text=f"{long} twice"))
    assert not alike(replace(one, text=long), replace(one, text="Weigh every parcel on the large scale by the door"))
    assert not alike(replace(one, text=long), replace(one, skill="air", text=long))
    assert not alike(one, Edit("delete section", "desk", "Insurance"))
    assert alike(Edit("delete section", "desk", "Tone"), Edit("delete section", "desk", "tone"))


def test_support_is_counted_in_tasks() -> None:
    runs = tuple(Citation(task, run, "p0") for task, run in (("a", "1"), ("a", "2"), ("b", "3")))
    edit = replace(ADD, supports=runs, contradicts=runs[:2])
    assert (edit.support, edit.opposition) == (2, 1)
    assert Proposal((edit,), "x").key == edit.key
    other = replace(edit, section="Other")
    assert Proposal((edit, other), "x").key == Proposal((other, edit), "y").key != edit.key


def test_the_diff_shows_what_changed_and_what_it_rests_on() -> None:
    edit = replace(ADD, reason="They forget.", supports=(Citation("t1", "r1", "p0", "not insured"),))
    after = apply(LIBRARY, [edit])
    shown = unified(LIBRARY, after)
    assert shown.startswith("--- a/desk/SKILL.md\n+++ b/desk/SKILL.md")
    assert "+Insure it." in shown
    assert "-" not in [line[:1] for line in shown.splitlines()[2:]]
    text = markdown(LIBRARY, after, [edit])
    assert "**add section 'Insurance' of desk**: 1 task for it, 0 against it" in text
    assert "why: They forget." in text
    assert "task t1, run r1, p0: “not insured”" in text
    assert unified(LIBRARY, LIBRARY) == ""
    assert "Nothing changed." in markdown(LIBRARY, LIBRARY)


def test_fences_in_a_skill_do_not_end_the_diff() -> None:
    after = apply(LIBRARY, [replace(ADD, text="````\ncode\n````")])
    text = markdown(LIBRARY, after)
    assert "\n`````diff\n" in text
    assert text.count("`````") == 2
    gone = unified(LIBRARY, SkillLibrary())
    assert "+++ /dev/null" in gone
