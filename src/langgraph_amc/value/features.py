"""A cheap value function: a linear model of hashed words, characters and lengths, which reads no meaning.

It is the bar a transformer has to clear to be worth its cost, and often enough by itself: it scores thousands of
states a second without a GPU or torch. Trained by `train_features`, on the split and by the measures of
`train_value`. A folder holds ``amc_features.json`` and the coefficients as safetensors; nothing is unpickled.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file
from scipy import sparse
from sklearn.feature_extraction.text import HashingVectorizer

from langgraph_amc.checks import check_path
from langgraph_amc.errors import ConfigurationError
from langgraph_amc.trajectories.transcript import printable
from langgraph_amc.trajectories.types import Segments
from langgraph_amc.value.errors import ValueModelError
from langgraph_amc.value.manifest import FORMAT, REPORT_FILE, check_transcripts, read_manifest, write_json
from langgraph_amc.value.protocol import FloatArray
from langgraph_amc.value.soft import soft_of_chance

FeatureLoss = Literal["bce", "mse"]
SPEC_FILE = "amc_features.json"
WEIGHTS_FILE = "features.safetensors"
LENGTHS = 3
"""Columns that are no text: see `FeatureSpec.features`."""


@dataclass(frozen=True, slots=True)
class FeatureSpec:
    """``amc_features.json``: how states become numbers, and what the linear model's output means.

    Attributes
    ----------
    last: how many of the last segments are read closely: pairs of words and pieces of words.
    columns: hashed columns for each of the three kinds of text features.
    loss: ``bce`` is a chance of success (logistic regression), ``mse`` a mean return (ridge regression).
    binary: every return that was trained on is 0 or 1, so that the soft value is known.
    transcript_fingerprint: of the options that wrote the transcripts it was trained on.
    """

    last: int
    columns: int
    loss: FeatureLoss
    binary: bool
    transcript_fingerprint: str
    library_version: str
    format: int = FORMAT

    @property
    def size(self) -> int:
        """Number of coefficients."""
        return 3 * self.columns + LENGTHS

    def features(self, transcripts: Sequence[Segments]) -> sparse.csr_matrix:
        """Features of each state, sparse float64 [n, size]: three texts, each of length 1, and the lengths' logs.

        Words of the run so far without its first segment, which all runs of a task share; words and pairs of words
        of the last segments; pieces of 3 to 5 characters of them; and log(1 + number of segments), of all characters
        and of those in the last segment.
        """
        steps = [[printable(segment) for segment in segments[1:]] for segments in transcripts]
        run = ["".join(segments) for segments in steps]
        end = ["".join(segments[-self.last :]) for segments in steps]
        lengths = [(len(s), len(whole), len(s[-1]) if s else 0) for s, whole in zip(steps, run, strict=True)]
        words = {"token_pattern": r"\w+|[^\w\s]", "n_features": self.columns}
        blocks = [
            HashingVectorizer(**words).transform(run),
            HashingVectorizer(**words, ngram_range=(1, 2)).transform(end),
            HashingVectorizer(analyzer="char_wb", ngram_range=(3, 5), n_features=self.columns).transform(end),
            sparse.csr_matrix(np.log1p(np.array(lengths, dtype=np.float64).reshape(-1, LENGTHS))),
        ]
        return sparse.hstack(blocks, format="csr")

    @classmethod
    def read(cls, folder: Path) -> FeatureSpec:
        """Read ``amc_features.json``; raises ValueModelError where it is missing, damaged or of another format."""
        path = folder / SPEC_FILE
        spec = read_manifest(path, lambda raw: cls(**raw), "train one with train_features")
        counts = (spec.last, spec.columns)
        if not all(isinstance(n, int) and n > 0 for n in counts) or spec.loss not in get_args(FeatureLoss):
            raise ValueModelError(f"{path} describes no value function; restore it or train again")
        return spec


class FeatureValue:
    """A linear model of text features as a `SoftValueFunction`; safe to call from several threads.

    Parameters
    ----------
    coefficients: [spec.size], ``intercept`` beside them.
    """

    def __init__(self, spec: FeatureSpec, coefficients: FloatArray, intercept: float) -> None:
        self.spec = spec
        self.coefficients = coefficients
        self.intercept = intercept

    def score(self, transcripts: Sequence[Segments]) -> FloatArray:
        """Expected future return of each state, float64 [n], in units of reward."""
        return self.predict(self._linear(transcripts))

    def predict(self, linear: FloatArray) -> FloatArray:
        """The mean return that outputs [n] of the linear model stand for."""
        return linear if self.spec.loss == "mse" else np.exp(-np.logaddexp(0.0, -linear))

    def soft_score(self, transcripts: Sequence[Segments], beta: float) -> FloatArray:
        """β·log E[exp(R/β)] of each state, float64 [n], in units of reward, for 0/1 returns (AMC, soft value).

        Raises
        ------
        ConfigurationError: β is not positive, or the returns it was trained on were graded.
        """
        if not self.spec.binary:
            raise ConfigurationError(
                "this value function knows the mean of graded returns only, and the soft value needs their "
                "distribution: train a transformer with loss='two_hot'"
            )
        raw = self._linear(transcripts)
        if self.spec.loss == "bce":
            return soft_of_chance(-np.logaddexp(0.0, -raw), -np.logaddexp(0.0, raw), beta)
        chance = np.clip(raw, 0.0, 1.0)
        with np.errstate(divide="ignore"):
            return soft_of_chance(np.log(chance), np.log1p(-chance), beta)

    def _linear(self, transcripts: Sequence[Segments]) -> FloatArray:
        if not transcripts:
            return np.empty(0)
        found: FloatArray = self.spec.features(transcripts) @ self.coefficients + self.intercept
        return found

    def save(self, folder: Path, report: Mapping[str, Any]) -> None:
        """Write it into ``folder``; the description comes last: without one the folder is no value function."""
        folder.mkdir(parents=True, exist_ok=True)
        (folder / SPEC_FILE).unlink(missing_ok=True)
        tensors: dict[str, NDArray[Any]] = {
            "coefficients": self.coefficients.astype(np.float64),
            "intercept": np.array([self.intercept], dtype=np.float64),
        }
        save_file(tensors, folder / WEIGHTS_FILE)
        write_json(folder / REPORT_FILE, report)
        write_json(folder / SPEC_FILE, asdict(self.spec))


def load_features(
    path: str | Path, transcript_fingerprint: str | None = None, *, allow_fingerprint_mismatch: bool = False
) -> FeatureValue:
    """Load a value function that `train_features` saved.

    Parameters
    ----------
    transcript_fingerprint: of the transcripts it will be given; ``None`` leaves that unchecked.

    Raises
    ------
    FingerprintMismatch: it was trained on transcripts written with other options.
    ValueModelError: something is missing, damaged or does not fit.
    """
    folder = check_path("a value function's folder", path)
    spec = FeatureSpec.read(folder)
    check_transcripts(folder, spec.transcript_fingerprint, transcript_fingerprint, any_other=allow_fingerprint_mismatch)
    try:
        stored = load_file(folder / WEIGHTS_FILE)
    except (SafetensorError, OSError) as error:
        raise ValueModelError(f"{folder / WEIGHTS_FILE} is damaged or missing ({error}): train again") from error
    shapes = {name: tensor.shape for name, tensor in stored.items()}
    if shapes != {"coefficients": (spec.size,), "intercept": (1,)} or not all(
        np.isfinite(tensor).all() for tensor in stored.values()
    ):
        raise ValueModelError(f"{folder} does not hold the {spec.size:,} coefficients it should: train again")
    return FeatureValue(spec, stored["coefficients"].astype(np.float64), float(stored["intercept"][0]))
