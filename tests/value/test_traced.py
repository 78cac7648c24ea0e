"""What a training of V leaves in a trace."""

from __future__ import annotations

from pathlib import Path

from langgraph_amc.telemetry import names
from langgraph_amc.telemetry.spans import current
from langgraph_amc.value.training.transformer import train_value
from tests.telemetry.support import exporting, named

from .world import slippery_runs


def test_a_training_and_its_epochs(base: Path, tmp_path: Path) -> None:
    with exporting() as (server, provider), current(provider.get_tracer("user").start_span("around"), provider):
        report = train_value(slippery_runs(tasks=3), base, out=tmp_path / "v", epochs=2)
    [fit] = named(server.spans, names.VALUE_FIT)
    assert fit.attributes[names.DATASET_SIZE] == report.train_states
    assert fit.attributes[names.LOSS_NAME] == "bce"
    epochs = named(server.spans, names.VALUE_EPOCH)
    assert [e.parent for e in epochs] == [fit.id] * len(report.epochs)
    assert [e.attributes[names.LOSS] for e in epochs] == [log.train_loss for log in report.epochs]
    assert [e.attributes[names.VALIDATION_LOSS] for e in epochs] == [log.validation_loss for log in report.epochs]
    assert all(fit.start <= e.start <= e.end <= fit.end for e in epochs)
