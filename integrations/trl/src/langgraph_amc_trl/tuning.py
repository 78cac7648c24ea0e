"""Training a local model on stored runs: from pairs or examples to a folder that serves as ``amc-local/<folder>``."""

from __future__ import annotations

import json
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from langgraph_amc.checks import check_items
from langgraph_amc.errors import AMCError, ConfigurationError
from langgraph_amc.evolution.export import export
from langgraph_amc.evolution.layout import layout
from langgraph_amc.evolution.weights import Weights
from langgraph_amc.files import write_whole
from langgraph_amc.policy import loading
from langgraph_amc.policy.forward import pick_device
from langgraph_amc.policy.text import TextCodec
from langgraph_amc_trl.conversations import Tool
from langgraph_amc_trl.divergence import check_trained
from langgraph_amc_trl.examples import Example, check_labels
from langgraph_amc_trl.methods import DPO, KTO, SFT, Method
from langgraph_amc_trl.offline import dpo_trainer, kto_trainer, sft_trainer
from langgraph_amc_trl.pairs import Pair
from langgraph_amc_trl.records import MODEL
from langgraph_amc_trl.rendering import codec_of, sequences
from langgraph_amc_trl.sequences import TokenSequence
from langgraph_amc_trl.trainer import quiet

LOG = "training.jsonl"
"""What was trained and how, then one line per optimiser step: TRL's measures."""
_LOCAL_MODEL = "amc-local/"


class NothingToTrainError(AMCError):
    """Data of which nothing is left to train on."""


@dataclass(frozen=True, slots=True)
class Tuned:
    """The result of training on stored data.

    Attributes
    ----------
    model: folder of the tuned model. weights: their hash (`evolution.weights`).
    used: pairs, or sequences. left_out: why others were not.
    tokens: in the sequences that were trained on. trained: of these, in the loss.
    steps: what TRL measured at each optimiser step.
    """

    model: str
    weights: str
    used: int
    left_out: Mapping[str, int]
    tokens: int
    trained: int
    steps: tuple[Mapping[str, float], ...]
    seconds: float


def train_on_pairs(
    pairs: Iterable[Pair],
    *,
    model: str | Path,
    out: str | Path,
    method: DPO | None = None,
    tools: Sequence[Tool] = (),
    device: str | None = None,
) -> Tuned:
    """Train a local model by DPO through TRL, and write it to ``out/model``; its own files are not changed.

    Parameters
    ----------
    model: folder of the policy that the pairs were sampled from, which is also the reference.
    out: new folder. tools: that the policy was given. device: as for `BatchEngine`.

    Raises
    ------
    NothingToTrainError: no pair is left. A pair whose halves are not each one sequence after the very prompt, or that
        is longer than the model's context, is left out and counted.
    ConfigurationError: a model or folder that cannot work. DivergedError: losses or weights became no numbers.
    """
    method = _method(method, DPO)
    given = check_items("pairs", pairs, Pair)
    with _Training(model, out, method, device) as training:
        kept: list[tuple[TokenSequence, TokenSequence]] = []
        for pair in given:
            halves = [training.sequences(pair.prompt, part, tools) for part in (pair.chosen, pair.rejected)]
            if any(len(half) != 1 for half in halves):
                training.left_out["not one sequence: the prompt of a later answer is not what was said before"] += 1
                continue
            if all(training.fits(s) for half in halves for s in half):
                kept.append((halves[0][0], halves[1][0]))
        return training.run(
            kept,
            [s for pair in kept for s in pair],
            lambda scratch: dpo_trainer(training.model, training.codec.tokenizer, kept, method, scratch),
        )


def train_on_runs(
    examples: Iterable[Example],
    *,
    model: str | Path,
    out: str | Path,
    method: SFT | KTO | None = None,
    tools: Sequence[Tool] = (),
    device: str | None = None,
) -> Tuned:
    """Train a local model on runs, by SFT (default) or KTO through TRL, and write it to ``out/model``.

    Parameters
    ----------
    examples: `selected_runs` for SFT, `labelled_runs` for KTO. The others are as in `train_on_pairs`.

    Raises
    ------
    NothingToTrainError: nothing is left.
    ConfigurationError: a setting that cannot work, or runs without labels for KTO. DivergedError: as above.
    """
    method = _method(method, SFT, KTO)
    given = check_items("examples", examples, Example)
    if isinstance(method, KTO) and given:
        check_labels(given)
    with _Training(model, out, method, device) as training:
        kept = [
            (sequence, bool(example.desirable))
            for example in given
            for sequence in training.sequences(example.prompt, example.completion, tools)
            if training.fits(sequence)
        ]
        plain = [sequence for sequence, _ in kept]
        tokenizer = training.codec.tokenizer

        def make(scratch: str) -> Any:
            if isinstance(method, KTO):
                return kto_trainer(training.model, tokenizer, kept, method, scratch)
            return sft_trainer(training.model, tokenizer, plain, method, scratch)

        return training.run(kept, plain, make)


def _method(given: Any, *kinds: Any) -> Any:
    method = kinds[0]() if given is None else given
    if not isinstance(method, kinds):
        names = " or ".join(kind.__name__ for kind in kinds)
        raise ConfigurationError(f"method is {names}, e.g. {kinds[0].__name__}(learning_rate=1e-5), got {method!r}")
    return method


class _Training:
    """One model in training, from its folder to the folder of the tuned one."""

    def __init__(self, model: str | Path, out: str | Path, method: Method, device: str | None) -> None:
        self._path = str(model).removeprefix(_LOCAL_MODEL)
        self._out = Path(out)
        self._method = method
        self._device = device
        self._began = time.perf_counter()
        self.left_out: Counter[str] = Counter()

    def __enter__(self) -> _Training:
        if self._out.exists() and (not self._out.is_dir() or any(self._out.iterdir())):
            raise ConfigurationError(f"{self._out} is there already: give another folder")
        self.codec: TextCodec = codec_of(self._path)
        self.model = load_model(self._path, self._device)
        self._context = int(self.model.config.get_text_config().max_position_embeddings)
        return self

    def __exit__(self, *_: object) -> None:
        del self.model

    def sequences(self, prompt: Any, completion: Any, tools: Sequence[Tool]) -> tuple[TokenSequence, ...]:
        return sequences(self.codec, prompt, completion, tools)

    def fits(self, sequence: TokenSequence) -> bool:
        if len(sequence.ids) <= self._context:
            return True
        self.left_out["longer than the model's context"] += 1
        return False

    def run(self, kept: Sequence[Any], trained_on: Sequence[TokenSequence], make: Callable[[str], Any]) -> Tuned:
        """Train, and write the model and the log."""
        if not kept:
            raise NothingToTrainError(
                f"nothing is left to train on (left out: {dict(self.left_out)}): collect runs whose returns differ"
            )
        try:
            self._out.mkdir(parents=True, exist_ok=True)  # before the work, not after it
        except OSError as error:
            raise ConfigurationError(f"{self._out} cannot be made ({error.strerror}): give another folder") from error
        weights = Weights(self.model, layout(self.model))
        before = weights.hash()
        with tempfile.TemporaryDirectory() as scratch, quiet():
            trainer = make(scratch)
            trainer.train()
            logged = [_numbers(entry) for entry in trainer.state.log_history if "loss" in entry]
        self.model.eval()
        check_trained(self.model, self._method.learning_rate, [entry["loss"] for entry in logged])
        with quiet():
            source = self._path if Path(self._path).is_dir() else None
            folder = export(weights, self._out / MODEL, source=source)
        about = {
            "method": {"name": type(self._method).__name__, **asdict(self._method)},
            "model": self._path,
            "before": before,
            "weights": weights.hash(),
            "used": len(kept),
            "left_out": dict(self.left_out),
            "trl": version("trl"),
        }
        write_whole(self._out / LOG, "".join(json.dumps(line) + "\n" for line in (about, *logged)))
        return Tuned(
            model=str(folder),
            weights=weights.hash(),
            used=len(kept),
            left_out=dict(self.left_out),
            tokens=sum(len(s.ids) for s in trained_on),
            trained=sum(s.trained for s in trained_on),
            steps=tuple(logged),
            seconds=time.perf_counter() - self._began,
        )


def load_model(path: str | Path, device: str | None = None) -> Any:
    """The model of a folder, in the type that an engine would serve it in (`BatchEngine.from_path`)."""
    target = pick_device(device)
    return loading.load_model(path, dtype=loading.serving_dtype(target)).to(target)


def _numbers(entry: Mapping[str, Any]) -> dict[str, float]:
    return {name: float(value) for name, value in entry.items() if isinstance(value, int | float)}
