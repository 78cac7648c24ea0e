"""The recipe graph: what is known of the original, whatever the order the data come in."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

import pytest
from langgraph_amc_textcraft import Recipe, RecipeDataError, family, load_book, plan, tasks
from langgraph_amc_textcraft import recipes as module
from langgraph_amc_textcraft.__main__ import main
from langgraph_amc_textcraft.recipes import build_book, read_recipes

BOOK = load_book()


def test_the_graph_has_the_size_of_the_original() -> None:
    assert (len(BOOK.recipes), len(BOOK.items), len(BOOK.base)) == (544, 676, 132)
    # 613 there: sugar from sugar cane is in two of its files
    assert sum(map(len, BOOK.recipes.values())) == 612
    # 291 and 117 there: white wool is no wool for its painting
    assert Counter(BOOK.depth[item] for item in BOOK.recipes) == {1: 125, 2: 292, 3: 116, 4: 11}


@pytest.mark.parametrize(
    ("item", "texts"),
    [
        ("oak_planks", ["craft 4 oak planks using 1 oak logs"]),
        ("stick", ["craft 1 stick using 2 bamboo", "craft 4 stick using 2 planks"]),
        ("barrel", ["craft 1 barrel using 6 planks, 2 wooden slabs"]),
        ("smoker", ["craft 1 smoker using 4 logs, 1 furnace"]),
        ("furnace", ["craft 1 furnace using 8 stone crafting materials"]),
        ("stone_hoe", ["craft 1 stone hoe using 2 stone tool materials, 2 stick"]),
        ("crimson_planks", ["craft 4 crimson planks using 1 crimson stems"]),
        ("torch", ["craft 4 torch using 1 coal, 1 stick"]),
        ("campfire", ["craft 1 campfire using 3 stick, 1 coals, 3 logs"]),
        ("fire_charge", ["craft 3 fire charge using 1 blaze powder, 1 coal, 1 gunpowder"]),
        ("blue_dye", ["craft 1 blue dye using 1 cornflower", "craft 1 blue dye using 1 lapis lazuli"]),
    ],
)
def test_tags_lists_and_separate_recipes_are_told_apart(item: str, texts: list[str]) -> None:
    # parts in any order: the data do not say in which the original has them
    def key(text: str) -> tuple[str, ...]:
        head, parts = text.split(" using ")
        return (head, *sorted(parts.split(", ")))

    assert sorted(key(recipe.text) for recipe in BOOK.recipes[item]) == sorted(map(key, texts))


def test_the_graph_has_no_cycle_and_every_part_is_known() -> None:
    place = {name: k for k, name in enumerate(BOOK.order)}
    for item, recipes in BOOK.recipes.items():
        for recipe in recipes:
            assert recipe.output == item
            for amount, name in recipe.parts:
                assert amount > 0
                assert place[item] < place[name]
                assert name in BOOK.items or name in BOOK.tags
    assert all(place[tag] < place[member] for tag, members in BOOK.tags.items() for member in members)


def test_the_order_of_the_data_does_not_matter() -> None:
    recipes, tags = read_recipes()
    for seed in range(3):
        shuffled = [*recipes, *recipes[:20]]
        random.Random(seed).shuffle(shuffled)
        assert build_book(shuffled, tags) == BOOK


def test_of_a_cycle_the_last_in_sorted_order_is_left_out() -> None:
    there, back = Recipe("ingot", 1, ((9, "nugget"),)), Recipe("nugget", 9, ((1, "ingot"),))
    unpack = Recipe("dust", 9, ((1, "dust_block"),))
    for given in ([there, back, unpack], [unpack, back, there]):
        book = build_book(given, {})
        assert dict(book.recipes) == {"ingot": (there,)}
        assert book.base == {"nugget", "dust", "dust_block"}


def test_a_cycle_through_a_tag_is_one_too() -> None:
    tags = {"planks": ("elm_planks", "oak_planks")}
    chest = Recipe("chest", 1, ((8, "planks"),))
    broken = Recipe("oak_planks", 8, ((1, "chest"),))
    book = build_book([broken, chest], tags)
    assert set(book.recipes) == {"chest"}
    assert book.depth == {"chest": 1, "planks": 0, "elm_planks": 0, "oak_planks": 0}


def test_data_that_are_no_choice_per_ingredient_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    names = ["chest", "oak_planks", "elm_planks", "oak_slab", "elm_slab"]
    data = {
        "items": [{"id": k, "name": name} for k, name in enumerate(names)],
        # elm planks go with elm slabs only: planks and slabs are not free to choose
        "recipes": {
            "0": [{"inShape": [[1, 3]], "result": {"count": 1}}, {"inShape": [[2, 4]], "result": {"count": 1}}]
        },
    }
    monkeypatch.setattr(module, "_data", data.__getitem__)
    with pytest.raises(RecipeDataError, match=r"variants of chest .* install version 3\.20"):
        read_recipes()


def test_plans_use_merged_fetches_and_exact_crafts() -> None:
    assert plan(BOOK, "oak_boat") == [
        "get 2 oak logs",
        "craft 4 oak planks using 1 oak logs",
        "craft 4 oak planks using 1 oak logs",
        "craft 1 oak boat using 5 oak planks",
    ]
    with pytest.raises(KeyError, match="diamond"):
        plan(BOOK, "diamond")


def test_tasks_are_in_a_fixed_order_with_disjoint_splits() -> None:
    everything = tasks(infeasible=True)
    depths_and_names = [(task.metadata["depth"], task.id) for task in everything]
    assert len(everything) == 544
    assert depths_and_names == sorted(depths_and_names)
    assert [task.metadata["index"] for task in everything] == list(range(544))
    assert set(everything.splits) == {"train", "tune", "test"}
    of_family: dict[str, set[str | None]] = {}
    for task in everything:
        of_family.setdefault(family(task.input["task"]["goal"]), set()).add(task.split)
    assert all(len(splits) == 1 for splits in of_family.values())
    assert family("light_blue_bed") == family("red_bed") == "bed"
    assert family("dark_oak_boat") == "boat"
    assert family("blue_ice") == "ice"
    assert family("redstone_torch") == "redstone_torch"


def test_options_choose_among_the_same_tasks() -> None:
    everything, feasible, deep = tasks(infeasible=True), tasks(), tasks(min_depth=3)
    assert len(feasible) == 531
    assert set(feasible.ids) < set(everything.ids)
    assert {task.metadata["depth"] for task in deep} == {3, 4}
    assert all(everything.get(task.id) == task for task in (*feasible, *deep))
    assert max(task.metadata["plan_steps"] for task in feasible) <= 20


def test_the_readme_shows_what_the_command_prints(capsys: pytest.CaptureFixture[str]) -> None:
    main()
    printed = capsys.readouterr().out
    assert "531 have a plan within 20 steps" in printed
    assert printed in (Path(__file__).parents[1] / "README.md").read_text("utf-8")
