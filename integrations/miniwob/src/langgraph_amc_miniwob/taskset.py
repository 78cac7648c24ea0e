"""MiniWoB++'s tasks: a page and the seed of its problem, with ids and splits that no machine changes."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from types import MappingProxyType
from typing import Literal

from langgraph_amc.tasks import Task, TaskSet
from langgraph_amc_miniwob.world import STEP_LIMIT, MiniWoBError, MiniWoBTask

PAGES: tuple[str, ...] = tuple(
    """
    book-flight book-flight-nodelay buy-ticket choose-date choose-date-easy choose-date-medium choose-date-nodelay
    choose-list click-button click-button-sequence click-checkboxes click-checkboxes-large click-checkboxes-soft
    click-checkboxes-transfer click-collapsible click-collapsible-2 click-collapsible-2-nodelay
    click-collapsible-nodelay click-dialog click-dialog-2 click-link click-menu click-menu-2 click-option
    click-scroll-list click-tab click-tab-2 click-tab-2-easy click-tab-2-hard click-tab-2-medium click-test
    click-test-2 click-test-transfer click-widget copy-paste copy-paste-2 email-inbox email-inbox-delete
    email-inbox-forward email-inbox-forward-nl email-inbox-forward-nl-turk email-inbox-important
    email-inbox-nl-turk email-inbox-noscroll email-inbox-reply email-inbox-star-reply enter-date enter-password
    enter-text enter-text-2 enter-text-dynamic enter-time find-greatest find-word focus-text focus-text-2
    form-sequence form-sequence-2 form-sequence-3 generate-number guess-number login-user login-user-popup
    multi-layouts multi-orderings navigate-tree odd-or-even order-food phone-book read-table read-table-2
    scroll-text search-engine sign-agreement simple-algebra simple-arithmetic social-media social-media-all
    social-media-some stock-market terminal text-transform unicode-test use-autocomplete use-autocomplete-nodelay
    use-colorwheel-2 use-slider use-slider-2 use-spinner
    """.split()  # noqa: SIM905
)
"""The pages whose problem and controls are in the text of the accessibility tree, in order of name.

Left out of BrowserGym's 125: what is drawn, coloured or dragged to a place (`click-shape`, `bisect-angle`,
`drag-box`, …), which needs a picture and coordinates.
"""

LONG: Mapping[str, int] = MappingProxyType(
    dict.fromkeys(
        (
            *("book-flight", "book-flight-nodelay", "choose-date", "choose-date-medium", "choose-date-nodelay"),
            *("click-checkboxes-large", "guess-number", "navigate-tree", "order-food", "phone-book", "search-engine"),
            *("social-media-all", "social-media-some", "terminal", "use-slider", "use-slider-2"),
        ),
        20,
    )
)
"""Step limits of the pages that can take more than 10 actions."""

FRACTIONS: Mapping[str, float] = MappingProxyType({"train": 0.6, "tune": 0.15, "test": 0.25})
"""Expected share of the families in each split, where it is pages that are held out."""

SEEDS: Mapping[str, int] = MappingProxyType({"train": 6, "tune": 2, "test": 4})
"""How many problems of a page are in each split, where it is seeds that are held out."""


def tasks(*, held_out: Literal["seeds", "pages"] = "seeds", pages: Sequence[str] | str = PAGES) -> TaskSet:
    """The tasks, by page and then by seed: 12 problems of each page.

    Metadata: ``page`` and ``family``, the page's name without what tells its variants apart.

    Parameters
    ----------
    held_out: ``seeds`` tests on other problems of the pages trained on, as is usual with MiniWoB++;
        ``pages`` on other pages: a family is in one split as a whole.
    pages: only these; also names joined by commas.
    """
    chosen = pages.split(",") if isinstance(pages, str) else list(pages)
    unknown = sorted(set(chosen) - set(PAGES))
    if unknown:
        raise MiniWoBError(f"not among the pages of this task set: {', '.join(unknown)}; see PAGES")
    if held_out not in ("seeds", "pages"):
        raise MiniWoBError(f"held_out={held_out!r}: either seeds or pages are held out")
    of_seed = [split for split, n in SEEDS.items() for _ in range(n)]
    families = TaskSet(Task(name, name) for name in sorted({family(page) for page in PAGES}))
    of_family = {task.id: task.split for task in families.random_split(FRACTIONS)}
    return TaskSet(
        Task(
            f"miniwob-{page}-{seed}",
            {"task": asdict(MiniWoBTask(page, seed, LONG.get(page, STEP_LIMIT)))},
            metadata={"page": page, "family": family(page)},
            split=split if held_out == "seeds" else of_family[family(page)],
        )
        for page in PAGES
        if page in set(chosen)
        for seed, split in enumerate(of_seed)
    )


def family(page: str) -> str:
    """A page's name without its variant: ``click-tab`` for ``click-tab-2-hard``, ``email-inbox`` for all of them."""
    for several in ("email-inbox", "social-media", "form-sequence", "click-checkboxes", "click-test", "multi"):
        if page.startswith(several):
            return several
    return re.sub(r"(-(2|3|nodelay|easy|medium|hard|dynamic|popup))+$", "", page)
