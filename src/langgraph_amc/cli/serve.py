"""``amc serve-value``: a value function for other processes and machines."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

import typer

from langgraph_amc.checks import without_password
from langgraph_amc.cli.progress import stderr
from langgraph_amc.errors import ConfigurationError
from langgraph_amc.value.serving.connection import TOKEN_VARIABLE, is_loopback


def serve_value(
    value: Annotated[
        str, typer.Argument(help="Folder of a trained value function, or file.py:object", show_default=False)
    ],
    host: Annotated[str, typer.Option(help="Where it listens; by default only this machine reaches it")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="0 takes a free one", min=0, max=65535)] = 8750,
    token_env: Annotated[
        str, typer.Option(help="Environment variable with the bearer token that requests must carry, if it is set")
    ] = TOKEN_VARIABLE,
    batch: Annotated[int, typer.Option(help="Transcripts of one request and of one batch", min=1)] = 256,
    window_ms: Annotated[float, typer.Option(help="How long a request waits for others to share its batch", min=0)] = 5,
    max_body_mb: Annotated[int, typer.Option(help="Largest request in megabytes", min=1)] = 32,
) -> None:
    """Serve a value function over HTTP, for wrap(value="http://127.0.0.1:8750"); Ctrl-C or SIGTERM ends it."""
    from langgraph_amc.value.serving.server import ServerLimits, ValueServer, serve

    limits = ServerLimits(batch=batch, waiting=16 * batch, window=window_ms / 1000, body=max_body_mb << 20)
    token = os.environ.get(token_env) or None
    served = _served(value)
    server = ValueServer(served, host=host, port=port, token=token, limits=limits)
    if not is_loopback(host):
        who = "who has the token" if token else f"ANYBODY: set {token_env} to ask for a token"
        stderr.print(
            f"amc: warning: {host} can be reached from other machines, without encryption, by {who}",
            markup=False,
            highlight=False,
            soft_wrap=True,
        )
    knows = "V and the soft value" if served.soft else "V"
    typer.echo(f"serving {knows} of {value} on {server.url} (fingerprint {served.fingerprint}); Ctrl-C ends it")
    serve(server)
    typer.echo("stopped")


def _served(name: str) -> Any:
    from langgraph_amc.tasks.loading import load_object
    from langgraph_amc.value.serving.server import Served, digest

    if "://" not in name and (Path(name).is_dir() or ":" not in name):
        return Served.of(name)
    if "://" in name:
        address = without_password(name)
        raise ConfigurationError(f"{address} is an address: serve what runs there, or a folder or file.py:object here")
    file = Path(name.rpartition(":")[0])
    return Served.of(load_object(name), digest(file) if file.is_file() else None)
