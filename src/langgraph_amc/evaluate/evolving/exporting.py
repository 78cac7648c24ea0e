"""The tuned model as a folder of its own, made again from the base and the history, and checked by its hash."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import cast

from langgraph_amc.errors import ConfigurationError
from langgraph_amc.evaluate.evolving.replica import without_bars
from langgraph_amc.evolution.export import export
from langgraph_amc.evolution.history import Log
from langgraph_amc.evolution.layout import Scope, layout
from langgraph_amc.evolution.replay import load, resume
from langgraph_amc.evolution.weights import Weights

_MARK = "amc_evolution.json"


def export_best(log: Log, best: int, model: str, folder: Path) -> Path:
    """Write the weights after ``best`` generations; a folder that this function wrote before is replaced.

    Raises WeightsError where the replay does not give the weights of the history, ConfigurationError for a folder
    that holds something else.
    """
    cut = Log(log.header, log.records[:best])
    mark = folder / _MARK
    if mark.is_file():
        if json.loads(mark.read_text())["weights"] == cut.weights:
            return folder
        shutil.rmtree(folder)
    elif folder.is_dir() and any(folder.iterdir()):
        raise ConfigurationError(f"{folder} holds something else: move it away, and run the command again")
    with without_bars():
        loaded = load(model)
        anchor = "copy" if log.header.strategy.decay else None
        weights = Weights(loaded, layout(loaded, cast(Scope, log.header.scope)), anchor=anchor)
        resume(cut, weights)
        export(weights, folder, source=model if Path(model).is_dir() else None)
    mark.write_text(json.dumps({"base": model, "generations": best, "weights": cut.weights}, indent=1))
    return folder
