"""Phoenix on loopback only: a process of its own, started, waited for and ended.

``phoenix serve`` listens for gRPC on all interfaces whatever host it is given, fetches from the network on its first
start and offers a shell to its assistant. Here all of that is off; see `loopback` for how.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx

from langgraph_amc_phoenix.errors import PhoenixError

LOOPBACK = "127.0.0.1"
_LAUNCHER = Path(__file__).with_name("loopback.py")
_OFF = {
    "PHOENIX_ALLOW_EXTERNAL_RESOURCES": "false",
    "PHOENIX_TELEMETRY_ENABLED": "false",
    "PHOENIX_DISABLE_AGENT_ASSISTANT": "true",
    "PHOENIX_AGENTS_DISABLE_BASH": "true",
    "PHOENIX_AGENTS_DISABLE_WEB_ACCESS": "true",
    "PHOENIX_AGENTS_DISABLE_GITHUB": "true",
    "PHOENIX_ENABLE_MCP_SERVER": "false",
}


@dataclass(frozen=True, slots=True)
class Phoenix:
    """A running server.

    Attributes
    ----------
    url: of its pages and its API. traces: where spans are sent, by OTLP over HTTP.
    """

    url: str
    pid: int

    @property
    def traces(self) -> str:
        return f"{self.url}/v1/traces"


@contextmanager
def serving(
    folder: str | Path | None = None, *, port: int = 0, python: str | None = None, patience: float = 180.0
) -> Iterator[Phoenix]:
    """Run Phoenix until the block ends.

    Parameters
    ----------
    folder: where it keeps its database; ``None``: nowhere, it is gone with the block.
    port: of its pages; 0: any that is free.
    python: interpreter of the environment that Phoenix is installed in, which is large; default: this one.
    patience: seconds it may take to start.

    Raises PhoenixError where it does not start.
    """
    kept = None if folder is None else Path(folder)
    where = Path(tempfile.mkdtemp(prefix="amc-phoenix-")) if kept is None else kept
    where.mkdir(parents=True, exist_ok=True)
    port, grpc_port = port or _free_port(), _free_port()
    log = where / "phoenix.log"
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("OTEL_", "PHOENIX_"))}
    environment |= _OFF | {
        "PHOENIX_HOST": LOOPBACK,
        "PHOENIX_PORT": str(port),
        "PHOENIX_GRPC_PORT": str(grpc_port),
        "PHOENIX_WORKING_DIR": str(where),
    }
    with log.open("wb") as output:
        process = subprocess.Popen(  # noqa: S603 - our own script, by the interpreter the caller names
            [python or sys.executable, str(_LAUNCHER)], env=environment, stdout=output, stderr=subprocess.STDOUT
        )
    try:
        url = f"http://{LOOPBACK}:{port}"
        _wait(process, url, patience, log)
        yield Phoenix(url, process.pid)
    finally:
        _end(process)
        if kept is None:
            shutil.rmtree(where, ignore_errors=True)


def _wait(process: subprocess.Popen[bytes], url: str, patience: float, log: Path) -> None:
    end = time.monotonic() + patience
    while time.monotonic() < end:
        if process.poll() is not None:
            raise PhoenixError(f"Phoenix ended with status {process.returncode}; it said: {_last_words(log)}")
        with contextlib.suppress(httpx.TransportError):
            if httpx.get(f"{url}/healthz", timeout=2).is_success:
                return
        time.sleep(0.2)
    raise PhoenixError(f"Phoenix did not start within {patience:g} s; it said: {_last_words(log)}")


def _last_words(log: Path) -> str:
    lines = log.read_text(errors="replace").strip().splitlines()
    return " / ".join(lines[-5:]) or "nothing"


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        return int(probe.getsockname()[1])


def main(arguments: Sequence[str] | None = None) -> None:
    """``amc-phoenix``: serve until interrupted."""
    parser = argparse.ArgumentParser(prog="amc-phoenix", description="Phoenix on this machine only")
    parser.add_argument("folder", help="where it keeps its database")
    parser.add_argument("--port", type=int, default=6006)
    parser.add_argument("--python", help="interpreter of the environment that Phoenix is installed in")
    given = parser.parse_args(arguments)
    with contextlib.suppress(KeyboardInterrupt), serving(given.folder, port=given.port, python=given.python) as phoenix:
        print(f"Phoenix at {phoenix.url}, spans to {phoenix.traces}; Ctrl-C ends it", flush=True)
        while True:
            time.sleep(3600)


if __name__ == "__main__":
    main()
