"""The command ``amc``: thin typer commands over the rooms below."""

from __future__ import annotations

import sys


def main() -> None:
    """Entry point of the command ``amc``."""
    from langgraph_amc.cli.app import app
    from langgraph_amc.errors import AMCError

    try:
        app()
    except AMCError as error:
        print(f"amc: {error}", file=sys.stderr)
        raise SystemExit(2) from None
