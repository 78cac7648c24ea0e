"""``wrap(config=…)``: a file that is read, checked, overridden, and refused with words."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import langgraph_amc as amc
from langgraph_amc.errors import ConfigurationError
from langgraph_amc.runtime.config import RunConfig
from langgraph_amc.smc import best_value, ess_below, every, tilt
from langgraph_amc.value.callables import CheckedSoftValue
from tests.evaluate.test_compare import build, sees_slips

TUNED = RunConfig(particles=5, resample="every(2) & ess_below(0.5)", tau=amc.ess_target(0.3), select="best_value")


def settings_of(wrapped: Any) -> Any:
    return wrapped._amc_settings


def written(folder: Path, **changes: Any) -> Path:
    path = folder / "amc.json"
    path.write_text(json.dumps({"version": 1, **changes}))
    return path


def test_a_file_sets_what_wrap_is_not_told(tmp_path: Path) -> None:
    TUNED.save(tmp_path / "deep" / "amc.json")
    found = settings_of(amc.wrap(build(), config=tmp_path / "deep" / "amc.json", value=sees_slips))
    assert found.particles == 5
    assert found.resample == every(2) & ess_below(0.5)
    assert found.tempering == amc.ess_target(0.3)
    assert found.select is best_value
    path = str(tmp_path / "deep" / "amc.json")
    mine = settings_of(amc.wrap(build(), config=path, value=sees_slips, particles=3, resample="every(1)"))
    assert (mine.particles, mine.resample, mine.tempering) == (3, every(1), amc.ess_target(0.3))
    decorated = amc.amc(config=TUNED, value=sees_slips, seed=4)(build)()
    assert (settings_of(decorated).particles, settings_of(decorated).seed) == (5, 4)


def test_a_run_with_a_config_is_the_run_with_its_arguments(tmp_path: Path) -> None:
    TUNED.save(tmp_path / "amc.json")
    given = {"messages": [("user", "walk")]}
    one = amc.wrap(build(), config=tmp_path / "amc.json", value=sees_slips, seed=3).invoke(given).amc
    two = amc.wrap(
        build(), particles=5, resample="every(2) & ess_below(0.5)", tau=amc.ess_target(0.3), value=sees_slips, seed=3
    )
    two = two.invoke(given).amc
    assert one.checks == two.checks
    assert one.winner.trajectory.segments == two.winner.trajectory.segments


temperings = st.one_of(
    st.floats(0.01, 10),
    st.builds(tilt, st.floats(0.1, 10)),
    st.builds(amc.fixed, st.floats(0.1, 10)),
    st.builds(
        amc.ess_target,
        st.floats(0.1, 0.9),
        st.one_of(st.none(), st.builds(tilt, st.floats(0.1, 10))),
        st.one_of(st.none(), st.floats(0.1, 99)),
        st.sampled_from(["growth", "level"]),
    ),
)


@settings(max_examples=40, deadline=None)
@given(
    tau=temperings,
    particles=st.one_of(st.none(), st.integers(1, 99)),
    boundary=st.sampled_from([None, "step", ("a", "b")]),
    select=st.sampled_from([None, "argmax"]),
)
def test_a_file_holds_what_was_saved(
    tmp_path_factory: pytest.TempPathFactory, tau: Any, particles: Any, boundary: Any, select: Any
) -> None:
    path = tmp_path_factory.mktemp("config") / "amc.json"
    config = RunConfig(particles, None, boundary, "every(2)", select, tau=tau, transcript="ab", tuned={"tasks": 12})
    config.save(path)
    assert RunConfig.load(path) == config


def test_the_folder_of_v_is_relative_to_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    value = tmp_path / "models" / "value"
    value.mkdir(parents=True)
    (value / "amc_value.json").write_text("{}")
    monkeypatch.chdir(tmp_path)
    RunConfig(value="models/value").save("conf/amc.json")
    assert json.loads(Path("conf/amc.json").read_text())["value"] == "../models/value"
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert Path(RunConfig.load("../conf/amc.json").value or "").resolve() == value
    found = settings_of(amc.wrap(build(), config="../conf/amc.json"))
    assert isinstance(found.value, CheckedSoftValue)
    (value / "amc_value.json").unlink()
    with pytest.raises(ConfigurationError, match=r"amc_value\.json"):
        amc.wrap(build(), config="../conf/amc.json")


def test_the_target_is_overridden_as_a_whole() -> None:
    found = settings_of(amc.wrap(build(), config=TUNED, value=sees_slips, objective="sample", beta=0.5))
    assert (found.objective, found.tempering) == ("sample", tilt(0.5))


def test_transcripts_have_to_be_those_it_was_tuned_on(tmp_path: Path) -> None:
    app = build()
    usual = amc.Transcript().fingerprint
    amc.wrap(app, config=written(tmp_path, transcript=usual), value=sees_slips)
    with pytest.raises(ConfigurationError, match="fingerprint 0123"):
        amc.wrap(app, config=written(tmp_path, transcript="0123"), value=sees_slips)
    other = amc.Transcript(max_tool_chars=50)
    amc.wrap(app, config=written(tmp_path, transcript=other.fingerprint), value=sees_slips, transcript=other)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "cannot be read"),
        ("[" * 100_000, "cannot be read"),
        ("[]", "no JSON object but list"),
        ("{}", "version None"),
        ('{"version": 2}', "version 2"),
        ('{"version": 1, "particels": 3}', "'particels', did you mean particles"),
        ('{"version": 1, "what": 3}', "'what'; it takes particles"),
        ('{"version": 1, "particles": "8"}', "particles cannot be '8'"),
        ('{"version": 1, "particles": true}', "particles cannot be True"),
        ('{"version": 1, "particles": 0}', "at least 1"),
        ('{"version": 1, "resample": "sometimes()"}', "sometimes"),
        ('{"version": 1, "select": "luck"}', "select is one of"),
        ('{"version": 1, "tau": {"ess": 1}}', "tau is a number"),
        ('{"version": 1, "tau": {"fixed": "one"}}', "tau cannot be"),
        ('{"version": 1, "tau": {"ess_target": 2}}', "between 0 and 1"),
        ('{"version": 1, "tau": {"ess_target": 0.5, "base": {"what": 1}}}', "tau is a number"),
        ('{"version": 1, "value": "nowhere"}', "no such folder"),
    ],
)
def test_a_bad_file_is_refused_with_words(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "amc.json").write_text(content)
    with pytest.raises(ConfigurationError, match=message):
        amc.wrap(build(), config=tmp_path / "amc.json")


def test_what_else_cannot_work(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="amc tune --out"):
        amc.wrap(build(), config=tmp_path / "none.json")
    with pytest.raises(ConfigurationError, match="config is the file"):
        amc.wrap(build(), config=3)  # type: ignore[call-arg]
    with pytest.raises(ConfigurationError, match="give it, value="):
        amc.wrap(build(), config=RunConfig(particles=4, tuned={"tasks": 12}))
    with pytest.raises(ConfigurationError, match="did you mean config"):
        amc.wrap(build(), confg="amc.json")  # type: ignore[call-arg]

    class Mine:
        exact, weighs = True, "level"

    with pytest.raises(ConfigurationError, match="Mine"):
        RunConfig(tau=Mine()).save(tmp_path / "amc.json")  # type: ignore[arg-type]


def test_no_password_is_written(tmp_path: Path) -> None:
    RunConfig(value="http://ann:secret@127.0.0.1:8100/v").save(tmp_path / "amc.json")
    assert "secret" not in (tmp_path / "amc.json").read_text()
    assert RunConfig.load(tmp_path / "amc.json").value == "http://127.0.0.1:8100/v"
