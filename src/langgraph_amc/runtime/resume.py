"""Going on with a run by its id, and saying what became of an effect that nobody knows of."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from langgraph_amc.errors import ConfigurationError
from langgraph_amc.runtime.effects.outcome import settle_effect
from langgraph_amc.runtime.request import CONTEXT, JOURNAL_KEY
from langgraph_amc.runtime.wrap import AMCFacade

if TYPE_CHECKING:
    from langgraph_amc.runtime.journal import Journal


def resume(app: Any, run_id: str, *, config: Mapping[str, Any] | None = None, context: Any = None) -> Any:
    """Go on with a run that did not end, as calling ``app.invoke`` again would.

    Parameters
    ----------
    app: the wrapped app, with the journal that holds the run.
    run_id: or the beginning of it.
    config, context: as the call had them; the journal keeps their names only. The thread it knows itself.

    Returns
    -------
    What ``app.invoke`` returns.

    Raises
    ------
    ConfigurationError: the app has no journal, or the call was given something that is missing here. JournalError:
    there is no such run, or it has ended.
    """
    return app.invoke(*_call(app, run_id, config, context), context=context)


async def aresume(app: Any, run_id: str, *, config: Mapping[str, Any] | None = None, context: Any = None) -> Any:
    """`resume` on an event loop."""
    return await app.ainvoke(*_call(app, run_id, config, context), context=context)


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


def _call(app: Any, run_id: str, config: Mapping[str, Any] | None, context: Any) -> tuple[Any, dict[str, Any]]:
    journal = app._amc_settings.journal if isinstance(app, AMCFacade) else None
    if journal is None:
        raise ConfigurationError("only a wrapped app with a journal can be resumed: wrap(app, journal='runs.sqlite')")
    left = journal.left(run_id)
    config = dict(config or {})
    configurable = dict(config.get("configurable") or {})
    given = {*configurable, *([] if context is None else [CONTEXT])}
    if missing := [name for name in left.about.get("given", ()) if name not in given]:
        keys = [repr(name) for name in missing if name != CONTEXT]
        parts = [f"config={{'configurable': {{{', '.join(f'{key}: …' for key in keys)}}}}}"] if keys else []
        wanted = ", ".join([*parts, *(["context=…"] if CONTEXT in missing else [])])
        raise ConfigurationError(f"the call of run {run_id} had more than its input: amc.resume(app, run, {wanted})")
    configurable[JOURNAL_KEY] = left.key
    if left.about["thread_id"] is not None:
        configurable["thread_id"] = left.about["thread_id"]
    return left.input, {**config, "configurable": configurable}
