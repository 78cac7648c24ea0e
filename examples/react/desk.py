"""The mail-order desk: its catalogue, orders to price, the reward, and a judge that needs no training."""

import random
import re
from collections.abc import Iterator

from langgraph_amc.tasks import FinishedRun, Task
from langgraph_amc.trajectories import read_calls

PRODUCTS = {  # euros, kilograms
    "desk": (120, 18), "lamp": (35, 2), "chair": (80, 9), "shelf": (64, 14), "rug": (45, 5), "mirror": (52, 7),
    "stool": (28, 4), "clock": (19, 1), "table": (150, 25), "bench": (90, 16), "vase": (23, 3), "screen": (110, 11),
}  # fmt: skip
SHIPPING = {  # euros per kilogram, euros per parcel
    "Norway": (3, 10), "Japan": (7, 21), "Kenya": (6, 17), "Chile": (8, 24), "Poland": (2, 6), "Canada": (5, 15),
}  # fmt: skip
CURRENCIES = {"NOK": 11, "JPY": 163, "KES": 142, "CLP": 1021, "PLN": 4, "CAD": 2}  # for one euro


def tasks(test: int = 20) -> Iterator[Task]:
    """Orders of two products, each a function of its number."""
    for number in range(test):
        rng = random.Random(f"order {number}")
        (first, second), (n, m) = rng.sample(sorted(PRODUCTS), 2), (rng.randint(2, 6), rng.randint(2, 6))
        country, currency = rng.choice(list(zip(SHIPPING, CURRENCIES, strict=True)))
        question = (
            f"What do {n} x {first} and {m} x {second} cost in {currency}, delivered to {country} in one parcel, "
            "the delivery included?"
        )
        (price, weight), (price2, weight2) = PRODUCTS[first], PRODUCTS[second]
        per_kg, parcel = SHIPPING[country]
        euros = n * price + m * price2 + (n * weight + m * weight2) * per_kg + parcel
        yield Task(f"order-{number:02}", question, reference=euros * CURRENCIES[currency], split="test")


def correct(run: FinishedRun) -> float:
    """1 if the number at the end of the last message is the right one, else 0."""
    assert run.task is not None
    numbers = re.findall(r"-?\d+", run.messages[-1].text.replace(",", ""))
    return float(numbers[-1:] == [str(run.task.reference)])


def grounded(transcript: str) -> float:
    """A value function: low once a call uses a name or a number that neither the question nor a tool has given.

    It knows neither prices nor arithmetic, and does not see a known number in the wrong place.
    """
    known: set[str] = set()
    for role, text in re.findall(r"<\|im_start\|>(\w+)\n(.*?)<\|im_end\|>", transcript, re.S):
        if role != "assistant":
            known |= set(re.findall(r"\w+", text))
            continue
        native = [" ".join(map(str, given.values())) for _, given in read_calls(text)]
        for argument in native or re.findall(r"Action: *\w+\[(.*?)\]", text):
            if not set(re.findall(r"\w+", argument)) <= known:
                return 0.05
    return 0.9
