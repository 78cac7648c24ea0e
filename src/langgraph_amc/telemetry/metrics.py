"""The instruments: made once for each provider, and only where somebody reads them."""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from importlib.metadata import version

from opentelemetry import metrics
from opentelemetry.metrics import Counter, Histogram, MeterProvider, UpDownCounter, get_meter_provider
from opentelemetry.metrics import _Gauge as Gauge

from langgraph_amc.telemetry import names


@dataclass(frozen=True, slots=True)
class Instruments:
    """All of them; none is labelled with a run or a particle, of which there is no end."""

    run_duration: Histogram
    generation_duration: Histogram
    ess_ratio: Histogram
    value: Histogram
    segments: Counter
    resamplings: Counter
    log_evidence: Gauge
    active: UpDownCounter
    loss: Histogram
    fitness: Histogram


_made: weakref.WeakKeyDictionary[MeterProvider, Instruments] = weakref.WeakKeyDictionary()


def instruments(provider: MeterProvider | None = None) -> Instruments | None:
    """Those of a provider, by default the global one; ``None`` where that is none but the API's placeholder."""
    provider = provider or get_meter_provider()
    if type(provider).__module__.startswith(metrics.__name__):  # nobody would ever see a number
        return None
    if provider not in _made:
        _made[provider] = _make(provider)
    return _made[provider]


def _make(provider: MeterProvider) -> Instruments:
    meter = provider.get_meter(names.SCOPE, version("langgraph-amc"))
    seconds = [0.1, 0.3, 1, 3, 10, 30, 100, 300, 1000, 3000]
    ratios = [0.1, 0.25, 0.5, 0.75, 0.9, 1.0]

    def histogram(name: str, unit: str, what: str, bounds: list[float] | None = None) -> Histogram:
        return meter.create_histogram(name, unit, what, explicit_bucket_boundaries_advisory=bounds)

    return Instruments(
        histogram(names.RUN_DURATION, "s", "From the call of an app to its answer", seconds),
        histogram(names.GENERATION_DURATION, "s", "From one check of the particles to the next", seconds),
        histogram(names.ESS_RATIOS, "1", "Effective sample size at a check over the live particles", ratios),
        histogram(names.PARTICLE_VALUES, "1", "What the value function said of a particle", ratios),
        meter.create_counter(names.SEGMENTS, "{segment}", "What became of particles at resamplings and at their end"),
        meter.create_counter(names.RESAMPLINGS, "{resampling}", "Resamplings"),
        meter.create_gauge(names.LOG_EVIDENCES, "1", "log of the estimated evidence of a run"),
        meter.create_up_down_counter(names.ACTIVE_PARTICLES, "{particle}", "Particles that can still run"),
        histogram(names.VALUE_LOSS, "1", "Loss of an epoch of value training", [0.01, 0.03, 0.1, 0.3, 1, 3, 10]),
        histogram(names.ES_FITNESSES, "1", "Mean reward of a member of a generation", ratios),
    )
