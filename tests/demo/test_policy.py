"""The shipped policy: an ordinary Hugging Face folder, an append-only tokenizer, a plausible success rate."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import langgraph_amc.demo
from langgraph_amc.demo.crafting import CraftingEnv, CraftingTask
from langgraph_amc.demo.taskgen import make_task, make_tasks

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

FOLDER = Path(langgraph_amc.demo.__file__).parent / "policy"


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return transformers.AutoTokenizer.from_pretrained(FOLDER)


@pytest.fixture(scope="module")
def model() -> Any:
    torch.set_num_threads(1)
    return transformers.AutoModelForCausalLM.from_pretrained(FOLDER, dtype=torch.float32).eval()


def ids(tokenizer: Any, text: str) -> list[int]:
    return tokenizer(text, add_special_tokens=False)["input_ids"]


def conversation(task: CraftingTask) -> list[dict[str, str]]:
    """A system line, then every recipe tried at once: real prompts, actions and observations.

    One thing is fetched once: nobody piles up more than tasks ask for, and the policy has no word for that.
    """
    env = CraftingEnv()
    messages = [{"role": "system", "content": "craft"}, {"role": "user", "content": env.reset(task)}]
    item, amount = task.supply[0]
    for recipe in task.recipes:
        fetched = recipe is not task.recipes[0]
        for action in (*(() if fetched else (f"get {amount} {item}",)), recipe.text, "inventory"):
            if not env.done:
                messages.append({"role": "assistant", "content": f"Thought: r1 {recipe.output}\nAction: {action}"})
                messages.append({"role": "user", "content": env.step(action)[0]})
    return messages


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 4_000_000_000 - 1), st.sampled_from(["finite", "unlimited"]))
def test_every_word_is_known_and_messages_concatenate(tokenizer: Any, seed: int, stock: str) -> None:
    messages = conversation(make_task(seed, stock=stock))
    whole = tokenizer.apply_chat_template(messages, tokenize=False)
    assert whole == "".join(f"<|im_start|>{m['role']}\n{m['content']}<|im_end|>\n" for m in messages)
    pieces = [ids(tokenizer, f"<|im_start|>{m['role']}\n{m['content']}<|im_end|>\n") for m in messages]
    assert ids(tokenizer, whole) == [token for piece in pieces for token in piece]
    assert tokenizer.unk_token_id not in ids(tokenizer, whole)
    for piece in pieces:
        assert piece[-1] == tokenizer.eos_token_id


def test_the_header_is_one_token_and_the_generation_prompt_is_the_assistant_header(tokenizer: Any) -> None:
    for role in ("system", "user", "assistant", "tool"):
        assert len(ids(tokenizer, f"<|im_start|>{role}\n")) == 1
    messages = [{"role": "user", "content": "Goal: rod"}]
    plain = tokenizer.apply_chat_template(messages, tokenize=False)
    assert tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True) == (
        plain + "<|im_start|>assistant\n"
    )


@given(st.data())
@settings(max_examples=50, deadline=None)
def test_what_is_generated_tokenises_to_what_was_generated(tokenizer: Any, data: Any) -> None:
    words = st.integers(0, len(tokenizer) - 1).filter(lambda i: i not in tokenizer.all_special_ids)
    special = {i for i, token in tokenizer.added_tokens_decoder.items()}
    generated = [i for i in data.draw(st.lists(words, max_size=30)) if i not in special]
    text = tokenizer.decode([*generated, tokenizer.eos_token_id], skip_special_tokens=True)
    assert ids(tokenizer, text) == generated
    assert ids(tokenizer, f"<|im_start|>assistant\n{text}<|im_end|>\n")[1:-1] == generated


def test_the_policy_solves_a_plausible_share_with_plain_generate(tokenizer: Any, model: Any) -> None:
    assert sum(p.numel() for p in model.parameters()) < 1_500_000
    torch.manual_seed(0)
    envs = [CraftingEnv() for _ in range(24)]
    texts = []
    for env, task in zip(envs, make_tasks("test", 24, start=900_000), strict=True):
        message = {"role": "user", "content": env.reset(task)}
        texts.append(tokenizer.apply_chat_template([message], tokenize=False))
    valid, steps = 0, 0
    while open_ := [i for i, env in enumerate(envs) if not env.done]:
        batch = tokenizer(
            [texts[i] + "<|im_start|>assistant\n" for i in open_],
            return_tensors="pt",
            padding=True,
            add_special_tokens=False,
        )
        made = model.generate(
            input_ids=batch["input_ids"],
            attention_mask=batch["attention_mask"],
            max_new_tokens=32,
            do_sample=True,
            top_k=0,
            temperature=1.0,
        )
        for i, row in zip(open_, made[:, batch["input_ids"].shape[1] :], strict=True):
            reply = tokenizer.decode(row, skip_special_tokens=True)
            observation, _, _, info = envs[i].step(reply)
            valid, steps = valid + info["valid"], steps + 1
            texts[i] += f"<|im_start|>assistant\n{reply}<|im_end|>\n<|im_start|>user\n{observation}<|im_end|>\n"
    solved = sum(env.success for env in envs)
    assert 1 <= solved <= 18
    assert valid / steps > 0.3
