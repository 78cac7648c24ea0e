"""From calls to sequences: one where prompts go on from each other token by token, else one per call."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from langgraph_amc_trl.sequences import Call, TokenSequence, sequences_of

TOKENS = st.lists(st.integers(0, 3), min_size=1, max_size=4).map(tuple)
CALLS = st.lists(st.builds(Call, prompt=TOKENS, answer=TOKENS), max_size=6)


def contexts(sequences: tuple[TokenSequence, ...]) -> list[tuple[tuple[int, ...], int]]:
    """Each sampled token with what stands before it."""
    return sorted((s.ids[:i], s.ids[i]) for s in sequences for i, sampled in enumerate(s.sampled) if sampled)


def expected(calls: list[Call]) -> list[tuple[tuple[int, ...], int]]:
    return sorted(((*call.prompt, *call.answer[:i]), token) for call in calls for i, token in enumerate(call.answer))


@given(CALLS)
def test_every_sampled_token_is_trained_once_in_the_context_it_was_sampled_in(calls: list[Call]) -> None:
    assert contexts(sequences_of(calls)) == expected(calls)


@given(st.lists(st.tuples(TOKENS, TOKENS), min_size=1, max_size=5))
def test_a_conversation_that_goes_on_is_one_sequence(turns: list[tuple[tuple[int, ...], tuple[int, ...]]]) -> None:
    calls: list[Call] = []
    said: tuple[int, ...] = ()
    for heard, answer in turns:
        calls.append(Call((*said, *heard), answer))
        said = (*said, *heard, *answer)
    [sequence] = sequences_of(calls)
    assert sequence.ids == said
    assert sequence.trained == sum(len(answer) for _, answer in turns)
    assert sequence.context == len(turns[0][0])
    assert contexts((sequence,)) == expected(calls)


def test_a_prompt_that_rewrites_what_was_said_begins_a_sequence_of_its_own() -> None:
    first, second = Call((1, 2), (3, 4)), Call((1, 2, 3, 9), (5,))
    assert sequences_of([first, second]) == (
        TokenSequence((1, 2, 3, 4), (False, False, True, True)),
        TokenSequence((1, 2, 3, 9, 5), (False, False, False, False, True)),
    )


def test_two_conversations_that_take_turns_stay_two() -> None:
    calls = [Call((1,), (2,)), Call((7,), (8,)), Call((1, 2, 3), (4,)), Call((7, 8, 9), (6,))]
    assert [s.ids for s in sequences_of(calls)] == [(1, 2, 3, 4), (7, 8, 9, 6)]


def test_samples_of_one_prompt_are_sequences_of_their_own() -> None:
    assert [s.ids for s in sequences_of([Call((1,), (2,)), Call((1,), (3,))])] == [(1, 2), (1, 3)]


def test_a_trajectory_without_calls_has_nothing_to_train_on() -> None:
    assert sequences_of([]) == ()
