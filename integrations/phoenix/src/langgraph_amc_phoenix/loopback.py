"""Phoenix's own ``serve``, with its gRPC port on loopback: run as a script by `serving`, where Phoenix is installed.

Phoenix asks gRPC for ``[::]:port``. What it asks for is changed on the way, so that this holds whatever it asks for;
an address that is no ``host:port`` is refused. Its web server is told the host.
"""

from __future__ import annotations

import sys
from typing import Any

from grpc import aio


def on_loopback(address: str) -> str:
    """The same port on 127.0.0.1."""
    port = address.rpartition(":")[2]
    if not port.isdigit():
        raise ValueError(f"Phoenix wants to listen at {address!r}, which cannot be kept on loopback")
    return f"127.0.0.1:{port}"


def keep_on_loopback() -> None:
    """Let gRPC's servers of this process listen on loopback only."""
    kind: Any = type(aio.server())
    insecure, secure = kind.add_insecure_port, kind.add_secure_port
    kind.add_insecure_port = lambda self, address: insecure(self, on_loopback(address))
    kind.add_secure_port = lambda self, address, credentials: secure(self, on_loopback(address), credentials)


if __name__ == "__main__":
    keep_on_loopback()
    from phoenix.server.main import main

    sys.argv = ["phoenix", "serve", "--host", "127.0.0.1"]
    main()
