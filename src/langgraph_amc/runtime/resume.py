"""Going on with a run by its id, and saying what became of an effect that nobody knows of."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from langgraph_amc.errors import ConfigurationError
from langgraph_amc.runtime.effects.outcome import settle_effect
from langgraph_amc.runtime.request import JOURNAL_KEY
from langgraph_amc.runtime.wrap import AMCFacade

if TYPE_CHECKING:
    from langgraph_amc.runtime.journal import Journal


def resume(app: Any, run_id: str) -> Any:
    """Go on with a run that did not end, as calling ``app.invoke`` again would.

    Parameters
    ----------
    app: the wrapped app, with the journal that holds the run.
    run_id: or the beginning of it.

    Returns
    -------
    What ``app.invoke`` returns.

    Raises
    ------
    ConfigurationError: the app has no journal. JournalError: there is no such run, or it has ended.
    """
    return app.invoke(*_call(app, run_id))


async def aresume(app: Any, run_id: str) -> Any:
    """`resume` on an event loop."""
    return await app.ainvoke(*_call(app, run_id))


def settle(journal: Journal, run_id: str, key: str, result: Any = None, *, error: Exception | None = None) -> None:
    """Tell a journal what became of an effect whose outcome is unknown; the run can then be gone on with.

    Parameters
    ----------
    run_id: of the run, or its beginning.
    key: the effect's idempotency key, as in the `EffectUnknownError` or in ``amc show``.
    result: what the tool would have returned; text is enough for a tool that a model calls.
    error: it did not take place: this is raised in the tool's stead.
    """
    left = journal.left(run_id)
    run = journal.open(left.key, seed=0, about={})
    try:
        settle_effect(run.outbox, key, result, error=error)
    finally:
        run.release()


def _call(app: Any, run_id: str) -> tuple[Any, dict[str, Any]]:
    journal = app._amc_settings.journal if isinstance(app, AMCFacade) else None
    if journal is None:
        raise ConfigurationError("only a wrapped app with a journal can be resumed: wrap(app, journal='runs.sqlite')")
    left = journal.left(run_id)
    configurable = {JOURNAL_KEY: left.key}
    if left.about["thread_id"] is not None:
        configurable["thread_id"] = left.about["thread_id"]
    return left.input, {"configurable": configurable}
