"""Servers to talk to; without the package there is nothing to test: ``pip install -e integrations/agentgym`` first."""

from __future__ import annotations

import importlib.util
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")

if importlib.util.find_spec("langgraph_amc_agentgym") is None:
    collect_ignore_glob = ["test_*.py"]

PROGRAM = Path(__file__).with_name("gym_servers.py")


@pytest.fixture(scope="session")
def gyms() -> Any:
    """The module of the servers."""
    spec = importlib.util.spec_from_file_location("agentgym_test_servers", PROGRAM)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def serve(gyms: Any) -> Iterator[Callable[..., Any]]:
    """Starts a server in this process; its ``open`` counts its environments."""
    started: list[Any] = []

    def start(kind: str, **options: Any) -> Any:
        server = gyms.GymServer(kind, **options)
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        started.append(server)
        return server

    yield start
    for server in started:
        server.shutdown()
        server.server_close()


@pytest.fixture
def spawn() -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Starts a server in a process of its own; it is listening when this returns."""
    started: list[subprocess.Popen[str]] = []

    def start(kind: str, port: int) -> subprocess.Popen[str]:
        process = subprocess.Popen([sys.executable, str(PROGRAM), kind, str(port)], stdout=subprocess.PIPE, text=True)
        started.append(process)
        assert process.stdout is not None
        assert process.stdout.readline().startswith("http://127.0.0.1:")
        return process

    yield start
    for process in started:
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


@pytest.fixture
def port() -> int:
    """One that is free."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])
