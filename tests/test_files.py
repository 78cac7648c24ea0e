"""Small files are there whole or not at all: after an error, after a kill, through a link."""

from __future__ import annotations

import multiprocessing
import os
import signal
import stat
from pathlib import Path

import pytest

from langgraph_amc.files import replacing, write_whole


def test_a_file_is_replaced_with_its_permissions_and_through_a_link(tmp_path: Path) -> None:
    write_whole(tmp_path / "deep" / "a.json", "one\n")
    (tmp_path / "deep" / "a.json").chmod(0o640)
    (tmp_path / "link").symlink_to(tmp_path / "deep" / "a.json")
    write_whole(tmp_path / "link", "zwölf\n")
    assert (tmp_path / "deep" / "a.json").read_bytes() == "zwölf\n".encode()
    assert (tmp_path / "link").is_symlink()
    assert stat.S_IMODE((tmp_path / "deep" / "a.json").stat().st_mode) == 0o640
    assert [p.name for p in (tmp_path / "deep").iterdir()] == ["a.json"]


def test_what_cannot_be_written_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    write_whole(tmp_path / "a", "old")
    with pytest.raises(UnicodeEncodeError):
        write_whole(tmp_path / "a", "new \ud800")

    def break_off() -> None:
        with replacing(tmp_path / "a") as draft:
            draft.write_text("half")
            raise InterruptedError

    with pytest.raises(InterruptedError):
        break_off()
    assert [p.name for p in tmp_path.iterdir()] == ["a"]
    assert (tmp_path / "a").read_text() == "old"


def test_a_kill_in_the_middle_leaves_the_old_file(tmp_path: Path) -> None:
    write_whole(tmp_path / "a", "old")

    def write() -> None:
        with replacing(tmp_path / "a") as draft:
            draft.write_text("half")
            os.kill(os.getpid(), signal.SIGKILL)

    process = multiprocessing.get_context("fork").Process(target=write)
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    assert (tmp_path / "a").read_text() == "old"
    write_whole(tmp_path / "a", "new")
    assert (tmp_path / "a").read_text() == "new"
