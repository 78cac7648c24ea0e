"""No judge's answer becomes a score unless it states exactly one, on the scale."""

from __future__ import annotations

import json
import random
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from langchain_core.messages import AIMessage

from langgraph_amc.errors import ConfigurationError
from langgraph_amc.value.judges.asking import read_message
from langgraph_amc.value.judges.reading import Scale, read_fields, read_text

UNIT, TEN, FOA, SIGNED, HUNDRED = Scale(0, 1), Scale(0, 10), Scale(1, 10), Scale(-1, 1), Scale(0, 100)


@pytest.mark.parametrize(
    ("answer", "scale", "score"),
    [
        ('{"score": 0.7}', UNIT, 0.7),
        ('  {"reason": "fine, 3 of 4 done", "score": 1}\n', UNIT, 1.0),
        ('```json\n{\n  "score": 7\n}\n```', TEN, 7.0),
        ('Here it is:\n```\n{"score": 7}\n```', TEN, 7.0),
        ('It failed twice.\n{"score": 0.25}', UNIT, 0.25),
        ('{"score": 1e-1}', UNIT, 0.1),
        ("Score: 7", TEN, 7.0),
        ("**Score:** 7", TEN, 7.0),
        ("**Final score: 7**", TEN, 7.0),
        ("> score = 7", TEN, 7.0),
        ("Two steps of 4 are done.\n\nScore: 5", TEN, 5.0),
        ("I think the score is 5.\nScore: 5", TEN, 5.0),
        ("Score: 7/10", TEN, 7.0),
        ("Score: 7 out of 10", FOA, 7.0),
        ("Score: 0.85/1.0", UNIT, 0.85),
        ("Score: 85%", UNIT, 0.85),
        ("Score: 85 %", HUNDRED, 85.0),
        ("0%", UNIT, 0.0),
        ("1", UNIT, 1.0),
        (".8", UNIT, 0.8),
        ("7/10", TEN, 7.0),
        ("`0.8`", UNIT, None),  # as a bare number only what is nothing but a number
        ("-0.5", SIGNED, -0.5),
        ("Score: +0.5", SIGNED, 0.5),
        ("-0", UNIT, 0.0),
        ("1.0", UNIT, 1.0),
        # out of the scale: neither clipped nor guessed
        ("10.5", TEN, None),
        ("7/10", UNIT, None),
        ("Score: 7/5", TEN, None),
        ("Score: 11/10", TEN, None),
        ("0", FOA, None),
        ("-0.5", UNIT, None),
        ("Score: 185%", UNIT, None),
        ("Score: 85%", TEN, None),
        ("Score: 85%", SIGNED, None),
        ("Score: 0.85%", UNIT, None),
        ('{"score": 2}', UNIT, None),
        ('{"score": 1e999}', UNIT, None),
        ('{"score": ' + "9" * 5000 + "}", UNIT, None),
        ("9" * 5000, UNIT, None),
        # several numbers
        ("Score: 3\nScore: 7", TEN, None),
        ("The score is 3, at first sight.\nScore: 7", TEN, None),
        ("Score: −7\nScore: 7", TEN, None),
        ("Score: 7, Score: 8", TEN, None),
        ("Score: 7-8", TEN, None),
        ("7 8", TEN, None),
        ("between 7 and 8", TEN, None),
        ('{"score": 3, "score": 7}', TEN, None),
        ('{"\\u0073core": 3, "score": 7}', TEN, None),
        ('{"score": 7, "final_score": 3}', TEN, None),
        ('{"reason": "a score of 3 would be mean", "score": 7}', TEN, None),
        ('{"score": 3}\n{"score": 7}', TEN, None),
        # not a number, or not a plain one
        ('{"score": NaN}', UNIT, None),
        ('{"score": Infinity}', UNIT, None),
        ('{"score": "0.7"}', UNIT, None),
        ('{"score": true}', UNIT, None),
        ('{"score": null}', UNIT, None),
        ('{"score": [0.7]}', UNIT, None),
        ('{"score": {"value": 0.7}}', UNIT, None),
        ('{"value": 0.7}', UNIT, None),
        ("{}", UNIT, None),
        ("[0.7]", UNIT, None),
        ("Score: nan", UNIT, None),
        ("inf", UNIT, None),
        ("Score: ٧", TEN, None),
        ("７", TEN, None),
        ("½", UNIT, None),
        ("Score: −0.5", SIGNED, None),
        ("Score: 0,8", UNIT, None),
        ("Score: 1_0", TEN, None),
        ("Score: 0x7", TEN, None),
        ("Score: seven", TEN, None),
        ("Score: ~7", TEN, None),
        ("Score: 7 (good)", TEN, None),
        ("Score:", TEN, None),
        # cut off: the rest of the number may be missing
        ('{"score": 0.7', UNIT, None),
        ('{"score": 0.', UNIT, None),
        ("Score: 0.", UNIT, None),
        ('```json\n{"score": 0.7}', UNIT, 0.7),  # all but the end of the fence is there
        # nothing
        ("", UNIT, None),
        ("   \n", UNIT, None),
        ("The run looks good.", UNIT, None),
        ("It did 7 of 10 steps", TEN, None),
        ("{" * 100_000 + "}", UNIT, None),
    ],
)
def test_every_answer_has_one_meaning(answer: str, scale: Scale, score: float | None) -> None:
    reading = read_text(answer, scale)
    assert reading.score == score
    assert (reading.problem is None) == (score is not None)
    assert oracle(answer, scale) == score


def test_tool_calls_and_cut_messages() -> None:
    def message(args: dict[str, object], **more: object) -> AIMessage:
        return AIMessage("", tool_calls=[{"name": "judgement", "args": args, "id": "1"}], **more)

    assert read_message(message({"score": 0.5}), UNIT).score == 0.5
    assert read_message(message({"score": float("nan")}), UNIT).score is None
    assert read_message(message({"score": "0.5"}), UNIT).score is None
    assert read_message(message({"score": 0.5}, response_metadata={"stop_reason": "max_tokens"}), UNIT).score is None
    assert read_message(AIMessage("Score: 1", response_metadata={"finish_reason": "length"}), UNIT).score is None
    assert read_message(AIMessage("Score: 1", response_metadata={"finish_reason": "stop"}), UNIT).score == 1
    assert read_message(AIMessage([{"type": "text", "text": "Score: 1"}]), UNIT).score == 1
    broken = AIMessage("Score: 1", invalid_tool_calls=[{"name": "x", "args": "{", "id": "1", "error": None}])
    assert read_message(broken, UNIT).score is None
    assert read_fields({"score": True}, UNIT).score is None


@pytest.mark.parametrize("ends", [(1, 0), (0, 0), (0, float("inf")), (float("nan"), 1)])
def test_a_scale_has_two_ends(ends: tuple[float, float]) -> None:
    with pytest.raises(ConfigurationError):
        Scale(*ends)


# -- what a legal answer is, a second time: character by character, without regular expressions --------------------


def oracle(answer: str, scale: Scale) -> float | None:
    text = answer.strip()
    block = block_at_the_end(text)
    end = text.split("\n")[-1].strip() if block is None else block
    found = json_score(text) if is_object(text) else json_score(end) if is_object(end) else None
    literal = found
    if found is None and not is_object(text) and not is_object(end):
        amount = labelled(end)
        if amount is None:
            amount = end if text.startswith("```") and block is not None and text.count("```") == 2 else text
        found, literal = on_scale(amount, scale), leading_number(amount)
    if found is None or not scale.low <= found <= scale.high:
        return None
    return found if all(number == literal for number in stated(text)) else None


def block_at_the_end(text: str) -> str | None:
    *before, last = text.split("\n")
    opening = max((i for i, line in enumerate(before) if "```" in line), default=len(before))
    if last.strip(" \t") != "```" or opening >= len(before) - 1 or not before[opening].startswith("```"):
        return None
    kind = before[opening][3:].rstrip(" \t")
    named = all(c.isalnum() or c in "_-" for c in kind)
    return "\n".join(before[opening + 1 :]).strip() if named else None


def is_object(text: str) -> bool:
    try:
        parsed = json.loads(text, object_pairs_hook=dict_once, parse_constant=float) if text[:1] == "{" else None
    except (ValueError, RecursionError):
        return False
    return isinstance(parsed, dict) and "NaN" not in text and "Infinity" not in text


def dict_once(pairs: list[tuple[str, object]]) -> dict[str, object]:
    assert_once = [key for key, _ in pairs]
    if len(set(assert_once)) < len(assert_once):
        raise ValueError
    return dict(pairs)


def json_score(text: str) -> float | None:
    score = json.loads(text).get("score")
    return score if type(score) in (int, float) and abs(score) < 1e300 else None


def plain(token: str) -> float | None:
    """An ASCII decimal: sign, digits with a point inside or before, exponent."""
    mantissa, mark, exponent = token.replace("E", "e").partition("e")
    if mark and not digits(exponent[1:] if exponent[:1] in ("+", "-") else exponent):
        return None
    whole, point, fraction = (mantissa[1:] if mantissa[:1] in ("+", "-") else mantissa).partition(".")
    good = digits(fraction) and (digits(whole) or not whole) if point else digits(whole)
    return float(token) if good else None


def digits(text: str) -> bool:
    return bool(text) and all(c in "0123456789" for c in text)


BLANKS = " \t\n\r\x0b\x0c"


def leading_number(amount: str) -> float | None:
    return next((v for n in range(len(amount), 0, -1) if (v := plain(amount[:n])) is not None), None)


def on_scale(amount: str, scale: Scale) -> float | None:
    if (alone := plain(amount)) is not None:
        return alone
    if amount.endswith("%") and (share := plain(amount[:-1].rstrip(BLANKS))) is not None:
        if 0 < abs(share) < 1 or scale.low != 0:
            return None
        return {1: share / 100, 100: share}.get(scale.high)
    for mark in ("/", "out"):
        number, found, top = amount.partition(mark)
        if not found:
            continue
        if mark == "out":
            rest = top.lstrip(BLANKS)
            if number == number.rstrip(BLANKS) or rest == top or not rest.startswith("of") or rest[2:3] not in BLANKS:
                continue
            top = rest[2:]
        value, limit = plain(number.rstrip(BLANKS)), plain(top.lstrip(BLANKS))
        if value is not None and limit == scale.high:
            return value
    return None


def labelled(line: str) -> str | None:
    """What follows ``Score:``, marks of emphasis taken off."""

    def unmark(text: str) -> str:
        return next((text[len(m) :] for m in ("**", "__", "`") if text.startswith(m)), text)

    rest = unmark(line.lstrip("#>" + BLANKS))
    for word in ("final", "overall"):
        if rest[: len(word)].lower() == word and rest[len(word) : len(word) + 1] in list(BLANKS):
            rest = rest[len(word) :].lstrip(BLANKS)
            break
    if rest[:5].lower() != "score":
        return None
    rest = unmark(rest[5:].lstrip(BLANKS)).lstrip(BLANKS)
    if rest[:1] not in (":", "="):
        return None
    rest = unmark(rest[1:].lstrip(BLANKS)).lstrip(BLANKS)
    return next((rest[: -len(m)] for m in ("**", "__", "`") if rest.endswith(m)), rest)


def stated(text: str) -> list[float | None]:
    """Every number that follows the word score and is, of, was, at, ``:`` or ``=``."""
    lower, found, start = text.lower(), [], 0
    if len(lower) != len(text):  # letters that grow: not used here
        return []
    while (at := lower.find("score", start)) >= 0:
        start, i, linked = at + 5, at + 5, False
        while i < len(text):
            if text[i] in "\"'*_`" or text[i].isspace():
                i += 1
                continue
            link = next((w for w in ("is", "of", "was", "at", ":", "=") if lower.startswith(w, i)), None)
            if link is None:
                break
            linked, i = True, i + len(link)
        sign = text[i : i + 1] if text[i : i + 1] in ("+", "-", "−", "–") else ""
        j = i + len(sign)
        while j < len(text) and (text[j].isdecimal() or text[j] in ".,"):
            j += 1
        token = text[i:j].rstrip(".,")
        if text[j - 1 : j].isdecimal() and text[j : j + 1] in ("e", "E"):
            k = j + 1 + (text[j + 1 : j + 2] in ("+", "-"))
            while k < len(text) and text[k].isdecimal():
                k += 1
            token = text[i:k] if text[k - 1].isdecimal() else token
        if linked and token.strip("+-−–"):
            found.append(plain(token))
    return found


# -- ten thousand answers that something went wrong with -----------------------------------------------------------

NUMBERS = ["0", "1", "7", "10", "0.5", ".8", "-0.5", "85", "1e-1", "0.123456789", "100"]
ODD = [
    "NaN",
    "inf",
    "-Infinity",
    "٧",
    "７",
    "½",
    "1,5",
    "0x1",
    "1_0",
    "1e999",
    "--1",
    "1.2.3",
    "ten",
    "null",
    '"1"',
    "",
]
FORMS: list[Callable[[str], str]] = [
    lambda n: f"Score: {n}",
    lambda n: f"**Score:** {n}",
    lambda n: f"It went well so far.\nScore: {n}",
    lambda n: n,
    lambda n: f"{n}/10",
    lambda n: f"Score: {n}%",
    lambda n: f"Score: {n} out of 10",
    lambda n: f'{{"score": {n}}}',
    lambda n: f'{{"reason": "step 3 of 4", "score": {n}}}',
    lambda n: f'```json\n{{"score": {n}}}\n```',
    lambda n: f'Here:\n{{"score": {n}}}',
    lambda n: f"The score is {n}.",
]
CHARACTERS = [*"0123456789.,%/-+eE:{}[]\"'`*_ \n\t−٧７\u00a0\u200b", "score", "Score: ", "is", "of"]


def spoilt(rng: random.Random) -> str:
    answer = rng.choice(FORMS)(rng.choice(NUMBERS if rng.random() < 0.7 else ODD))
    for _ in range(rng.choice([0, 1, 1, 2, 4])):
        at = rng.randrange(len(answer) + 1)
        kind = rng.randrange(6)
        if kind == 0:
            answer = answer[:at] + rng.choice(CHARACTERS) + answer[at:]
        elif kind == 1:
            answer = answer[:at] + answer[at + rng.randint(1, 3) :]
        elif kind == 2:
            answer = answer[:at]  # cut off
        elif kind == 3:
            answer = answer + rng.choice(["\n", " ", ", ", ""]) + rng.choice(FORMS)(rng.choice(NUMBERS + ODD))
        elif kind == 4:
            answer = answer[:at] + answer[at : at + 4] * 2 + answer[at + 4 :]
        else:
            answer = answer.replace("score", rng.choice(["Score", "rating", "SCORE", "scores", "final_score"]), 1)
    return answer


def test_ten_thousand_spoilt_answers_fabricate_nothing() -> None:
    rng = random.Random(0)
    read = 0
    for number in range(10_000):
        answer, scale = spoilt(rng), rng.choice([UNIT, TEN, FOA, SIGNED, HUNDRED])
        reading, expected = read_text(answer, scale), oracle(answer, scale)
        assert reading.score == expected, (number, answer, scale, reading)
        assert (reading.score is None) == bool(reading.problem)
        read += reading.score is not None
    assert 500 < read < 4_000, "the test has to hold both kinds"


PIECES = ["Score", ":", " ", "1", "0", ".", "e", "-", "{", '"score"', "}", "\n", "%", "/", "٧", "```"]


@given(st.lists(st.sampled_from(PIECES), max_size=12).map("".join))
@settings(max_examples=500, deadline=None)
def test_no_text_is_read_but_as_the_rules_say(answer: str) -> None:
    assert read_text(answer, TEN).score == oracle(answer, TEN)


@given(st.text(max_size=200))
@settings(max_examples=300, deadline=None)
def test_no_text_breaks_the_reader(answer: str) -> None:
    read_text(answer, UNIT)
    read_text("Score: " + answer, UNIT)


@given(st.floats(0, 1), st.sampled_from([0, 1, 2]))
@settings(max_examples=200, deadline=None)
def test_every_number_on_the_scale_comes_through(score: float, form: int) -> None:
    answer = [json.dumps({"score": score}), f"Score: {score!r}", f"Because.\n{json.dumps({'score': score})}"][form]
    assert read_text(answer, UNIT).score == score
