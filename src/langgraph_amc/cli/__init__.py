"""The command ``amc``: thin typer commands over the rooms below."""

from __future__ import annotations

import os
import sys
import traceback

INTERRUPTED = 130


def main() -> None:
    """Entry point of the command ``amc``."""
    # LiteLLM would look its price list up in the network when it is imported
    os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")
    from langgraph_amc.cli.app import app
    from langgraph_amc.errors import AMCError

    try:
        app()
    except SystemExit as stop:
        if stop.code == INTERRUPTED:
            print("amc: interrupted; what was stored so far is kept", file=sys.stderr)
        raise
    except AMCError as error:
        print(f"amc: {error}", file=sys.stderr)
        raise SystemExit(2) from None
    except Exception as error:
        if os.environ.get("AMC_TRACEBACK"):
            raise
        where = traceback.extract_tb(error.__traceback__)[-1]
        print(
            f"amc: {type(error).__name__}: {error} ({where.filename}:{where.lineno}; AMC_TRACEBACK=1 shows all)",
            file=sys.stderr,
        )
        raise SystemExit(1) from None
