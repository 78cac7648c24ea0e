"""A run in a real Phoenix: sent by OTLP, read back by its API, scores attached; nothing listens but on loopback."""

from __future__ import annotations

import os
import time
from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from langchain.agents import create_agent
from langgraph_amc_phoenix import Phoenix, PhoenixScores, serving
from openinference.instrumentation.langchain import LangChainInstrumentor
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor

import langgraph_amc as amc
from tests.support.graphs import ScriptedModel, add

pytestmark = [pytest.mark.phoenix, pytest.mark.timeout(600)]


def listening(pid: int) -> set[IPv4Address | IPv6Address]:
    """Addresses at which a process listens, by what the kernel says."""
    sockets = {os.readlink(link) for link in Path(f"/proc/{pid}/fd").iterdir() if link.is_symlink()}
    found: set[IPv4Address | IPv6Address] = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and f"socket:[{fields[9]}]" in sockets:
                raw = bytes.fromhex(fields[1].partition(":")[0])
                # 32-bit words in the machine's own order
                address = ip_address(b"".join(raw[k : k + 4][::-1] for k in range(0, len(raw), 4)))
                found.add(getattr(address, "ipv4_mapped", None) or address)
    return found


def test_a_run_in_phoenix(tmp_path: Path) -> None:
    # the server may live in an environment of its own
    with serving(tmp_path, python=os.environ.get("AMC_PHOENIX_PYTHON")) as phoenix:
        assert listening(phoenix.pid) == {IPv4Address("127.0.0.1")}
        sink = PhoenixScores(phoenix.url)
        provider = TracerProvider(resource=Resource.create({"openinference.project.name": "amc"}))
        provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint=phoenix.traces), max_queue_size=65536))
        instrumentor = LangChainInstrumentor()
        instrumentor.instrument(tracer_provider=provider)
        try:
            noise = np.random.default_rng(0)
            app = create_agent(ScriptedModel(rounds=3), [add])
            better = amc.wrap(
                app,
                particles=4,
                value=lambda transcripts: noise.random(len(transcripts)),
                reward=lambda run: 0.5,
                resample=amc.every(1),
                effects={"*": "pure"},
                telemetry=amc.Telemetry(tracer_provider=provider, scores=sink),
                seed=0,
            )
            better.invoke({"messages": [("user", "go")]})
        finally:
            instrumentor.uninstrument()
            provider.shutdown()
        assert sink.flush(120)
        result = amc.last_run(better)
        _check(phoenix, all_spans(phoenix, least=60), result)


def all_spans(phoenix: Phoenix, least: int) -> list[dict[str, Any]]:
    """Everything in the project, once it has stopped growing."""
    found: list[dict[str, Any]] = []
    for _ in range(120):
        answer = httpx.get(f"{phoenix.url}/v1/projects/amc/spans", params={"limit": 1000}, timeout=30)
        now = answer.json()["data"] if answer.is_success else []
        if len(now) >= least and len(now) == len(found):
            return now
        found = now
        time.sleep(0.5)
    raise AssertionError(f"only {len(found)} spans have arrived")


def _check(phoenix: Phoenix, spans: list[dict[str, Any]], result: amc.AMCResult) -> None:
    by_id = {s["context"]["span_id"]: s for s in spans}
    [root] = [s for s in spans if not s["parent_id"]]
    assert root["name"] == "invoke_workflow LangGraph"
    assert len({s["context"]["trace_id"] for s in spans}) == 1
    assert all(s["parent_id"] in by_id for s in spans if s is not root)
    lives = [s for s in spans if s["name"].startswith("amc.particle")]
    assert {s["attributes"]["amc.particle.id"] for s in lives} == {t.particle for t in result.trajectories}
    models = [s for s in spans if s["span_kind"] == "LLM"]
    assert len(models) == sum(t.usage.calls for t in result.trajectories)
    ids = [s["context"]["span_id"] for s in spans]
    answer = httpx.get(
        f"{phoenix.url}/v1/projects/amc/span_annotations", params={"span_ids": ids, "limit": 1000}, timeout=60
    )
    filed = {(a["span_id"], a["name"]): a["result"]["score"] for a in answer.json()["data"]}
    assert filed[root["context"]["span_id"], "reward"] == 0.5
    rewards = [k for k in filed if k[1] == "reward" and k[0] != root["context"]["span_id"]]
    assert len(rewards) == len(result.particles)
    values = [k for k in filed if k[1] == "value" and by_id[k[0]]["name"].startswith("amc.segment")]
    assert len(values) == sum(len(check.values) for check in result.checks)
