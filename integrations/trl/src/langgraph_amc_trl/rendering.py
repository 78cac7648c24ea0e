"""From messages to the tokens that the policy read and said, by the chat template of its folder.

A conversation becomes the model calls that led to it: before each answer the template's generation prompt, as the
engine sends it (`policy.text.TextCodec`), then the answer up to and with its end token, as the engine samples it. Calls
become sequences as in GRPO (`sequences`): only what the policy said counts in a loss, tool results never do.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from langgraph_amc.errors import AMCError
from langgraph_amc.policy.loading import load_tokenizer
from langgraph_amc.policy.text import TextCodec
from langgraph_amc.trajectories.transcript import Transcript
from langgraph_amc.trajectories.types import Trajectory
from langgraph_amc_trl.conversations import ASSISTANT, Message, NotAConversationError, Tool, conversation
from langgraph_amc_trl.sequences import Call, TokenSequence, sequences_of


class UnseenTokensError(AMCError):
    """What would be trained on is not what the policy read."""


def codec_of(model: str | Path) -> TextCodec:
    """The tokenizer and end tokens of a model's folder.

    Raises ConfigurationError where there is none.
    """
    from transformers import GenerationConfig

    tokenizer = load_tokenizer(model)
    try:
        config = GenerationConfig.from_pretrained(str(model))
    except OSError:  # it has none of its own
        config = None
    return TextCodec(tokenizer, config)


def calls_of(
    codec: TextCodec, prompt: Sequence[Message], completion: Sequence[Message], tools: Sequence[Tool] = ()
) -> tuple[Call, ...]:
    """The model calls whose answers are in the completion, in tokens.

    Raises
    ------
    ConfigurationError: no chat template, or none that takes tools, and some are given.
    UnseenTokensError: the template writes what was said otherwise than it asked for it.
    """
    found = []
    messages = [*prompt, *completion]
    for at in range(len(prompt), len(messages)):
        if messages[at]["role"] != ASSISTANT:
            continue
        asked = codec.prompt(messages[:at], tools or None)
        found.append(Call(tuple(asked), _answer(codec, messages[: at + 1], tools)))
    return tuple(found)


def _answer(codec: TextCodec, messages: Sequence[Message], tools: Sequence[Tool]) -> tuple[int, ...]:
    """Tokens of the last message, its end token included, as they follow the generation prompt."""
    tokenizer = codec.tokenizer

    def text(part: Sequence[Message], generation: bool) -> str:
        plain = [dict(message) for message in part]
        written: str = tokenizer.apply_chat_template(
            plain, tools=list(tools) or None, add_generation_prompt=generation, tokenize=False
        )
        return written

    before, whole = text(messages[:-1], True), text(messages, False)
    if not whole.startswith(before):
        raise UnseenTokensError(
            "the chat template does not write an answer where its generation prompt asked for it (does it add or "
            "remove thoughts?): give the model's folder a template that does"
        )
    ids: list[int] = tokenizer(whole[len(before) :], add_special_tokens=False)["input_ids"]
    end = next((i for i, token in enumerate(ids) if token in codec.end_ids), None)
    if end is not None:
        return tuple(ids[: end + 1])
    return (*ids, tokenizer.eos_token_id)  # the template leaves out what ended the answer


def sequences(
    codec: TextCodec, prompt: Sequence[Message], completion: Sequence[Message], tools: Sequence[Tool] = ()
) -> tuple[TokenSequence, ...]:
    """The completion's sequences: one where the template only appends, else one for each call that it does not."""
    return sequences_of(calls_of(codec, prompt, completion, tools))


def check_seen(
    trajectories: Iterable[Trajectory],
    model: str | Path,
    *,
    tools: Sequence[Tool] = (),
    transcript: Transcript | None = None,
) -> int:
    """How many trajectories could be compared, by their numbers of tokens: their messages are what the model read.

    For runs of the very model that is to be trained. It finds an app that shows its model something else than its
    messages (a prompt made from the state, skills, cut tool results): training on these would teach another policy.
    Runs that called the model more or less often than there are answers are not compared.

    Raises
    ------
    UnseenTokensError: they are not.
    """
    codec = codec_of(model)
    compared = 0
    for trajectory in trajectories:
        usage, born = trajectory.usage, trajectory.forked_at or 0
        try:
            said = conversation(trajectory, tools, transcript)
        except NotAConversationError:
            continue
        own = [i for i, s in enumerate(said) if s.by_model and s.state > born]
        if not own or len(own) != usage.calls:
            continue
        messages = [s.message for s in said]
        calls = [call for i in own for call in calls_of(codec, messages[:i], messages[i : i + 1], tools)]
        read, answered = sum(len(c.prompt) for c in calls), sum(len(c.answer) for c in calls)
        # an answer that a limit cut off has no end token, and the template writes one
        if read != usage.input_tokens or not answered - len(calls) <= usage.output_tokens <= answered:
            raise UnseenTokensError(
                f"run {trajectory.run_id}, particle {trajectory.particle}: the model read {usage.input_tokens} tokens "
                f"and said {usage.output_tokens}, its messages come to {read} and {answered}. The app shows its model "
                "something else than its messages, or the run was of another model or had other tools: give tools=, or "
                "leave the check out for another model's runs"
            )
        compared += 1
    return compared
