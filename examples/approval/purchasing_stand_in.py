"""The stand-in for a model that buys: it compares as it should, and slips at each decision.

With chance `SLIP`, or a part of it, it overlooks that an offer is late, takes a supplier for certified, takes the
second best offer (which the example's check cannot see), or miscalculates.
"""

import random
import re
from collections.abc import Sequence

from langchain_core.messages import AIMessage, BaseMessage

from langgraph_amc.demo.stand_in import call

SLIP = 0.4


def decide(messages: Sequence[BaseMessage], rng: random.Random) -> AIMessage:
    """The next call."""
    request = next(m.text for m in messages if m.type == "human")
    found = re.search(r"Order (\d+) x (.*?)\. Delivery within (\d+) days", request)
    if found is None:
        return AIMessage("What shall I order? Write: Order 5 x desk lamps, model 1. Delivery within 9 days, …")
    quantity, article, days = int(found[1]), found[2], int(found[3])
    seen = "\n".join(m.text for m in messages if m.type == "tool")
    listed = re.findall(r"(\w+): (\d+) EUR each, (\d+) EUR delivery, (\d+) days", seen)
    if not listed:
        return call("offers", article=article)
    done = [c for m in messages if m.type == "ai" for c in m.tool_calls]
    refused = {c["args"]["supplier"] for c in done if c["name"] == "place_order"}
    known = {name: answer == "certified" for name, answer in re.findall(r"(\w+) is ((?:not )?certified)", seen)}
    ranked = sorted(
        (quantity * int(price) + int(fee), name)
        for name, price, fee, wait in listed
        if name not in refused and (int(wait) <= days or (name not in known and rng.random() < SLIP / 4))
    )
    if len(ranked) > 1 and not known and rng.random() < SLIP / 2:
        del ranked[0]
    for total, name in ranked:
        trusted = known.get(name) or (name in known and rng.random() < SLIP / 2)
        if name not in known and rng.random() >= SLIP / 2:
            return call("supplier", name=name)
        if trusted or name not in known:
            said = total + 10 * rng.randint(1, 9) if rng.random() < SLIP / 2 else total
            order = {"supplier": name, "article": article, "quantity": quantity, "total": said}
            return call("place_order", **order)
    return AIMessage("No offer meets the requirements.")
