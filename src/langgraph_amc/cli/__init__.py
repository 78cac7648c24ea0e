"""The command ``amc``: thin typer commands over the rooms below."""

from __future__ import annotations

import io
import logging
import os
import sys
import threading
import traceback

INTERRUPTED = 130


def main() -> None:
    """Entry point of the command ``amc``."""
    code = 1
    try:
        _run()
        code = 0
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
        raise
    finally:
        _leave(code)


def _leave(code: int) -> None:
    """End the process even if the user's app leaves a thread that waits for ever, as open aiosqlite connections do."""
    waiting = [t for t in threading.enumerate() if not t.daemon and t is not threading.main_thread()]
    if waiting:
        logging.shutdown()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _run() -> None:
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # as standard error: an answer that was paid for is printed
    # LiteLLM would look its price list up in the network when it is imported
    os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")
    from langgraph_amc.cli.app import app
    from langgraph_amc.cli.kept import kept
    from langgraph_amc.errors import AMCError

    def left() -> str:
        return f"; {kept.get()}" if kept.get() else ""

    try:
        app()
    except SystemExit as stop:
        if stop.code == INTERRUPTED:
            print(f"amc: interrupted{left()}", file=sys.stderr)
        raise
    except AMCError as error:
        print(f"amc: {error}", file=sys.stderr)
        raise SystemExit(2) from None
    except Exception as error:
        if os.environ.get("AMC_TRACEBACK"):
            raise
        where = traceback.extract_tb(error.__traceback__)[-1]
        print(
            f"amc: {type(error).__name__}: {error} ({where.filename}:{where.lineno}; "
            f"AMC_TRACEBACK=1 shows all){left()}",
            file=sys.stderr,
        )
        raise SystemExit(1) from None
