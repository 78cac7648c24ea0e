"""The local provider through LiteLLM and LangChain, over a real (tiny, random) model on disk."""

import asyncio

import litellm
import pytest
from langchain_core.messages import HumanMessage
from langchain_litellm import ChatLiteLLM

from langgraph_amc.context import ParticleContext, current_particle
from langgraph_amc.policy.chat import chat_model
from langgraph_amc.policy.engines import get_engine
from langgraph_amc.policy.generation import GenerationRequest
from langgraph_amc.policy.litellm_setup import load_litellm
from langgraph_amc.policy.usage import UsageCallback

MESSAGES = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "héllo"}]
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}]
load_litellm()


@pytest.fixture
def model(model_path):
    return f"amc-local/{model_path}"


def direct(path, **options):
    return get_engine(path).generate(GenerationRequest(messages=MESSAGES, **options))


async def test_completion_equals_the_engine_sync_and_async(model, model_path):
    options = {"max_tokens": 12, "temperature": 0.8, "top_p": 0.9, "seed": 4, "n": 2}
    want = direct(model_path, **options)
    for got in (
        await asyncio.to_thread(litellm.completion, model, MESSAGES, **options),
        await litellm.acompletion(model, MESSAGES, **options),
    ):
        assert [c.message.content for c in got.choices] == [g.text for g in want]
        assert [c.finish_reason for c in got.choices] == [g.finish_reason for g in want]
        assert got.usage.prompt_tokens == want[0].prompt_tokens
        assert got.usage.completion_tokens == sum(len(g.token_ids) for g in want)


def test_the_prompt_is_the_chat_template(model_path):
    engine = get_engine(model_path)
    text = engine.codec.tokenizer.decode(engine.codec.prompt(MESSAGES, None))
    assert text == (
        "<|im_start|>system\nbe brief<|im_end|>\n<|im_start|>user\nhéllo<|im_end|>\n<|im_start|>assistant\n"
    )


async def test_stop_and_finish_reason(model, model_path):
    full = direct(model_path, max_tokens=30, seed=1)[0].text
    got = await litellm.acompletion(model, MESSAGES, max_tokens=30, seed=1, stop=full[5])
    assert got.choices[0].message.content == full[: full.index(full[5])]
    assert got.choices[0].finish_reason == "stop"


async def test_streaming_yields_the_same_text_in_pieces(model, model_path):
    want = direct(model_path, max_tokens=20, seed=2)[0]
    options = {"max_tokens": 20, "seed": 2, "stream": True, "stream_options": {"include_usage": True}}
    chunks = [c async for c in await litellm.acompletion(model, MESSAGES, **options)]
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == want.text
    assert sum(bool(c.choices and c.choices[0].delta.content) for c in chunks) > 1
    assert chunks[-1].usage.completion_tokens == len(want.token_ids)
    chunks = await asyncio.to_thread(lambda: list(litellm.completion(model, MESSAGES, **options)))
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == want.text


async def test_particles_are_reproducible_and_distinct(model):
    async def run(run_id):
        async def one(i):
            current_particle.set(ParticleContext(run_id, f"p{i}", 100 + i))
            out = [await litellm.acompletion(model, MESSAGES, max_tokens=12) for _ in range(2)]
            return [o.choices[0].message.content for o in out]

        return await asyncio.gather(*[one(i) for i in range(4)])

    first = await run("one")
    assert await run("two") == first
    assert len({text for texts in first for text in texts}) == 8


async def test_without_seed_or_particle_samples_are_fresh(model):
    outs = await asyncio.gather(*[litellm.acompletion(model, MESSAGES, max_tokens=12) for _ in range(4)])
    assert len({o.choices[0].message.content for o in outs}) > 1


async def test_errors_are_the_ones_litellm_users_handle(model):
    with pytest.raises(litellm.ContextWindowExceededError, match="shorten"):
        await litellm.acompletion(model, [{"role": "user", "content": "x" * 600}])
    with pytest.raises(litellm.BadRequestError, match="chat template does not use"):
        await litellm.acompletion(model, MESSAGES, tools=TOOLS)
    with pytest.raises(litellm.BadRequestError, match="temperature"):
        await litellm.acompletion(model, MESSAGES, temperature=-1)
    with pytest.raises(litellm.BadRequestError, match="logit_bias"):
        await litellm.acompletion(model, MESSAGES, logit_bias={"5": 1})


async def test_text_blocks_are_joined_and_images_refused(model):
    blocks = [{"role": "user", "content": [{"type": "text", "text": "hé"}, {"type": "text", "text": "llo"}]}]
    plain = [{"role": "user", "content": "héllo"}]
    options = {"max_tokens": 5, "seed": 1}
    got = [await litellm.acompletion(model, m, **options) for m in (blocks, plain)]
    assert got[0].choices[0].message.content == got[1].choices[0].message.content
    image = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,"}}]}]
    with pytest.raises(litellm.BadRequestError, match="text only"):
        await litellm.acompletion(model, image)


async def test_a_timeout_stops_the_work(model, model_path):
    engine = get_engine(model_path)
    for call in (litellm.acompletion, lambda *a, **k: asyncio.to_thread(litellm.completion, *a, **k)):
        with pytest.raises(litellm.Timeout), engine.paused():
            await call(model, MESSAGES, max_tokens=400, timeout=0.05)
        await litellm.acompletion(model, MESSAGES, max_tokens=1)
        assert engine.stats.generated_tokens < 400


async def test_tools_reach_a_template_that_knows_them(tool_model_path):
    got = await litellm.acompletion(f"amc-local/{tool_model_path}", MESSAGES, tools=TOOLS, max_tokens=2)
    plain = await litellm.acompletion(f"amc-local/{tool_model_path}", MESSAGES, max_tokens=2)
    assert got.usage.prompt_tokens > plain.usage.prompt_tokens + 20


@pytest.mark.parametrize("make", [ChatLiteLLM, chat_model])
async def test_through_langchain_with_usage_at_no_cost(make, model, model_path):
    chat = make(model=model, max_tokens=10, model_kwargs={"seed": 6})
    messages = [("system", "be brief"), HumanMessage("héllo")]
    want = direct(model_path, max_tokens=10, seed=6)[0]
    callback = UsageCallback()
    config = {"callbacks": [callback]}
    answers = [await chat.ainvoke(messages, config), await asyncio.to_thread(chat.invoke, messages, config)]
    streamed = [c async for c in chat.astream(messages, config)]
    answers.append(sum(streamed[1:], streamed[0]))
    assert [a.content for a in answers] == [want.text] * 3
    usage = callback.usage
    assert (usage.calls, usage.input_tokens) == (3, 3 * want.prompt_tokens)
    assert usage.output_tokens == 3 * len(want.token_ids)
    assert usage.cost == 0.0


async def test_particles_of_a_local_model_keep_their_own_seeds(model):
    chat = chat_model(model, max_tokens=10)

    async def one(i):
        current_particle.set(ParticleContext("three", f"p{i}", 200 + i))
        return (await chat.ainvoke("hi")).content

    first = await asyncio.gather(*[one(i) for i in range(5)])
    assert len(set(first)) == 5


async def test_cancelling_a_call_stops_the_work(model, model_path):
    engine = get_engine(model_path)
    task = asyncio.create_task(litellm.acompletion(model, MESSAGES, max_tokens=400, seed=8))
    while not engine._batch._rows:  # noqa: ASYNC110
        await asyncio.sleep(0.001)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await litellm.acompletion(model, MESSAGES, max_tokens=1)
    assert not engine._batch._rows


def test_one_engine_per_path(model_path):
    assert get_engine(model_path) is get_engine(str(model_path))


async def test_a_path_that_is_no_model_says_so(tmp_path):
    litellm = load_litellm()
    with pytest.raises(litellm.BadRequestError, match=r"config\.json"):
        await litellm.acompletion(f"amc-local/{tmp_path}", [{"role": "user", "content": "hello"}])
