from __future__ import annotations

from pathlib import Path

from typer.testing import CliRunner

from disaggroute.__main__ import app
from disaggroute.envs import profiles

run = CliRunner().invoke


def test_show_prints_constants_sources_and_what_follows() -> None:
    result = run(app, ["profile", "show", "a40-qwen2.5-3b"])
    assert result.exit_code == 0
    for text in (
        "step.decode_base_ms",
        "13.106",
        "1.3% / 4.1%",
        "assumed",
        "60,000 tokens",
        "175.0 / 525.0 ms",
    ):
        assert text in result.output


def test_show_answers_an_unknown_name_with_exit_code_2() -> None:
    result = run(app, ["profile", "show", "a40"])
    assert result.exit_code == 2
    assert "disaggroute: unknown profile 'a40'" in result.output


def test_import_writes_a_file_for_each_fit(shared_data: Path, tmp_path: Path) -> None:
    result = run(app, ["profile", "import", str(shared_data / "profiles" / "profiles.json"), "--out", str(tmp_path)])
    assert result.exit_code == 0
    fits = {name for name in profiles.names() if not name.startswith("a40-")}
    assert {path.stem for path in tmp_path.glob("*.yaml")} == fits


def test_import_answers_bad_input_with_exit_code_2(tmp_path: Path) -> None:
    missing = run(app, ["profile", "import", str(tmp_path / "none.json")])
    assert (missing.exit_code, "cannot be read" in missing.output) == (2, True)
    source = run(app, ["profile", "import", "x", "--from", "aiconfigurator-fit"])
    assert (source.exit_code, "nearest: aiconfigurator-fits" in source.output) == (2, True)
