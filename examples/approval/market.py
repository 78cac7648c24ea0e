"""Offers and suppliers, made from names; what to buy, when an order is right, and a check that knows the rules only."""

import random
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from langgraph_amc.tasks import FinishedRun, Task
from langgraph_amc.trajectories import read_calls

SUPPLIERS = ("Albrecht", "Bruun", "Castel", "Dorn", "Eklund", "Farkas", "Gruber", "Holt", "Iversen", "Janda")
ARTICLES = ("desk lamps", "office chairs", "whiteboards", "headsets", "monitors", "footrests", "shredders", "lockers")


_GAVE_UP = re.compile(r"<\|im_start\|>assistant\n(?!offers |supplier |place_order )[^|]*<\|im_end\|>\n\Z")


@dataclass(frozen=True, slots=True)
class Offer:
    """One supplier's offer of an article; prices in euros."""

    supplier: str
    price: int
    fee: int
    days: int

    def total(self, quantity: int) -> int:
        """What so many cost, delivered."""
        return quantity * self.price + self.fee

    def __str__(self) -> str:
        return f"{self.supplier}: {self.price} EUR each, {self.fee} EUR delivery, {self.days} days"


def certified(supplier: str) -> bool:
    """Whether a supplier may be bought from."""
    return supplier in SUPPLIERS[::2]


def offers_for(article: str) -> list[Offer]:
    """Six offers, a function of the article's name: ``"desk lamps, model 7"``."""
    if not article.startswith(ARTICLES):
        return []
    rng = random.Random(article)
    base = rng.randint(40, 200)
    chosen = rng.sample(SUPPLIERS, 6)
    return [Offer(s, base + rng.randint(-9, 9), rng.randint(0, 120), rng.randint(2, 20)) for s in chosen]


def tasks(test: int = 20) -> Iterator[Task]:
    """What to buy; at least one offer meets the requirements."""
    number = made = 0
    while made < test:
        rng = random.Random(f"purchase {number}")
        number += 1
        article, quantity, days = f"{rng.choice(ARTICLES)}, model {number}", rng.randint(5, 40), rng.randint(8, 14)
        fitting = [o for o in offers_for(article) if o.days <= days and certified(o.supplier)]
        if not fitting:
            continue
        best = min(fitting, key=lambda offer: offer.total(quantity))
        request = f"Order {quantity} x {article}. Delivery within {days} days, from a certified supplier."
        wanted = {"supplier": best.supplier, "article": article, "quantity": quantity, "total": best.total(quantity)}
        yield Task(f"purchase-{number:03}", request, reference=wanted, split="test")
        made += 1


def would_be_approved(run: FinishedRun) -> float:
    """1 if the proposal is the cheapest order that meets the requirements, else 0; the run may wait for its answer."""
    assert run.task is not None
    return float(any(order == run.task.reference for order in _proposals(run.messages)[-1:]))


def within_rules(transcript: str) -> float:
    """A value function: a proposal should follow the rules that can be checked without comparing offers.

    The article, quantity and days of the request, the total of the offer, a supplier that was looked up and is
    certified. Whether a cheaper offer fits, it does not see. Giving up counts as a fault.
    """
    request = re.search(r"Order (\d+) x (.*?)\. Delivery within (\d+) days", transcript)
    if request is None:
        return 0.5
    quantity, article, days = int(request[1]), request[2], int(request[3])
    said = transcript.replace("<|im_end|>", "")
    seen = {
        name: Offer(name, int(price), int(fee), int(wait))
        for name, price, fee, wait in re.findall(r"^(\w+): (\d+) EUR each, (\d+) EUR delivery, (\d+) days$", said, re.M)
    }
    fine = set(re.findall(r"^(\w+) is certified$", said, re.M))
    faults = int(_GAVE_UP.search(transcript) is not None)
    for name, given in read_calls(said):
        named = str(given.get("name" if name == "supplier" else "supplier"))
        if name == "offers":
            faults += given.get("article") != article
        elif name == "supplier":
            faults += named not in seen or seen[named].days > days
        elif name == "place_order":
            offer = seen.get(named)
            faults += named not in fine or given.get("article") != article or given.get("quantity") != quantity
            faults += offer is None or offer.days > days or given.get("total") != offer.total(quantity)
    return float(0.9 * 0.2**faults)


def _proposals(messages: Any) -> list[dict[str, Any]]:
    calls = [call for m in messages if m.type == "ai" for call in m.tool_calls]
    return [call["args"] for call in calls if call["name"] == "place_order"]
