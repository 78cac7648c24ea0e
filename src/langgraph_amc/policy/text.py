"""Tokens to text and back for the batch engine: chat template, end tokens, stop strings, text as it grows."""

from __future__ import annotations

import threading
from array import array
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from langgraph_amc.errors import ConfigurationError

_INCOMPLETE = "�"  # how a tokenizer shows the first bytes of an unfinished character


class TextCodec:
    """A Hugging Face tokenizer as the engine needs it: thread-safe and quick on single tokens."""

    def __init__(self, tokenizer: Any, generation_config: Any = None) -> None:
        self.tokenizer = tokenizer
        self._lock = threading.Lock()
        self._pieces: dict[int, str] = {}
        self.special: Mapping[str, int] = dict(
            zip(tokenizer.all_special_tokens, tokenizer.all_special_ids, strict=True)
        )
        configured = generation_config.eos_token_id if generation_config is not None else None
        ids = configured if isinstance(configured, list) else [configured]
        self.end_ids = frozenset(i for i in [*ids, tokenizer.eos_token_id] if i is not None)

    def prompt(self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] | None) -> list[int]:
        """Token ids of a conversation, ready for the assistant's turn.

        Raises
        ------
        ConfigurationError: there is no chat template, or tools are given and it does not use them.
        """
        template = self.tokenizer.chat_template
        if not template:
            raise ConfigurationError(
                "this model's tokenizer has no chat template: add one (tokenizer_config.json or"
                " chat_template.jinja), or send prompt_ids"
            )
        if isinstance(template, dict):
            template = template.get("tool_use" if tools and "tool_use" in template else "default", "")
        if tools and "tools" not in template:
            raise ConfigurationError(
                "this model's chat template does not use `tools`: choose a model whose template does, or"
                " describe the tools in the system message"
            )
        with self._lock:
            text = self.tokenizer.apply_chat_template(
                [dict(m) for m in messages],
                tools=list(tools) if tools else None,
                add_generation_prompt=True,
                tokenize=False,
            )
            return self._encode(text)

    def _encode(self, text: str) -> list[int]:
        if self.tokenizer.is_fast:
            # Past the wrapper: building a BatchEncoding costs more than tokenising a short prompt.
            return self.tokenizer.backend_tokenizer.encode(text, add_special_tokens=False).ids
        return self.tokenizer(text, add_special_tokens=False)["input_ids"]

    def decode(self, ids: Iterable[int]) -> str:
        """Text of some tokens, special ones left out."""
        with self._lock:
            return self.tokenizer.decode(list(ids), skip_special_tokens=True, clean_up_tokenization_spaces=False)

    def split_stops(self, stop: tuple[str, ...]) -> tuple[frozenset[int], tuple[str, ...]]:
        """Stops that are a special token each (they never show in the text), and the others."""
        tokens = frozenset(self.special[s] for s in stop if s in self.special)
        return self.end_ids | tokens, tuple(s for s in stop if s not in self.special)

    def may_complete(self, token: int, stop: tuple[str, ...]) -> bool:
        """Whether this token may be the one that completes a stop string; never wrongly false.

        The text is decoded only then. A character that spans tokens, or a blank that the tokenizer adds
        between two words, does not show in a single token's text, so these always count.
        """
        piece = self._pieces.get(token)
        if piece is None:
            piece = self._pieces[token] = self.decode([token])
        return _INCOMPLETE in piece or any(s[-1] in piece or s[-1] == " " for s in stop)

    def find_stop(self, ids: array[int], stop: tuple[str, ...]) -> str | None:
        """The text before the first stop string, or ``None`` if there is none."""
        text = self.decode(ids)
        cuts = [at for s in stop if (at := text.find(s)) >= 0]
        return text[: min(cuts)] if cuts else None

    def settled(self, ids: array[int], stop: tuple[str, ...]) -> str:
        """The part of the text that later tokens cannot change or cut off."""
        text = self.decode(ids)
        while text.endswith(_INCOMPLETE):
            text = text[:-1]
        hold = max(
            (k for s in stop for k in range(1, len(s)) if text.endswith(s[:k])),
            default=0,
        )
        return text[: len(text) - hold]
