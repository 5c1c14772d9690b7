"""What the manifest lets be built, override and choose: each takes effect, and is in the inputs or hidden from them."""

from __future__ import annotations

import json
import shutil
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from tests.support.index import Index
from tests.support.processes import run
from tests.support.project import Project
from tests.support.provisioning import current, marker, provision, site_packages
from tests.support.sources import make_sdist, write_source
from tests.support.wheels import make_wheel


def add_source(project: Project, index: Index, name: str, version: str = "1.0", extra: str = "") -> Path:
    return make_sdist(
        index.folder,
        write_source(project.folder.parent / f"{name}-{version}", name, version, extra=extra),
        name,
        version,
    )


def ask(project: Project, *requirements: str, **keys: object) -> None:
    project.manifest(environment={"requirements": [*requirements], **keys})


def locked(project: Project, name: str = "pylock.toml") -> dict[str, Any]:
    """Give the packages of a lock by name."""
    document = tomllib.loads((project.folder / name).read_text())
    return {one["name"]: one for one in document["packages"]}


def inputs(project: Project) -> dict[str, Any]:
    document: dict[str, Any] = tomllib.loads((project.folder / "pylock.toml").read_text())["tool"]["aml-nox"]["inputs"]
    return document


def facts(project: Project) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(marker(current(project)).read_text())
    return found


# --- allow-build


def test_a_package_without_a_wheel_is_refused_with_the_way_out(project: Project, index: Index) -> None:
    add_source(project, index, "demo-source")
    ask(project, "demo-source")
    error = project.aml("lock", "--json", "-").expect(3).json()["error"]
    assert error["code"] == "AML_RESOLUTION"
    assert "name it in environment.allow-build" in error["hint"]


@pytest.mark.parametrize("word", ["demo-source", "Demo_Source", "demo.source"])
def test_a_package_that_is_named_is_built_in_whatever_spelling(project: Project, index: Index, word: str) -> None:
    add_source(project, index, "demo-source")
    ask(project, "demo-source", **{"allow-build": [word]})
    provision(project)
    assert (site_packages(current(project)) / "demo_source.py").exists()
    assert inputs(project)["allow-build"] == ["demo-source"]


def test_one_that_is_named_lets_no_other_one_be_built(project: Project, index: Index) -> None:
    for name in ("demo-source", "demo-other"):
        add_source(project, index, name)
    ask(project, "demo-source", "demo-other", **{"allow-build": ["demo-source"]})
    failed = project.aml("provision").expect(3)
    assert "demo-other" in failed.err
    assert not (project.folder / "pylock.toml").exists()


def test_one_that_is_named_is_built_even_where_a_wheel_is(project: Project, index: Index) -> None:
    """What was built is what was asked for; the wheel may have been left out for a reason."""
    add_source(project, index, "demo-alpha", "1.0")
    ask(project, "demo-alpha==1.0", **{"allow-build": ["demo-alpha"]})
    provision(project)
    assert (site_packages(current(project)) / "demo_alpha.py").exists()
    assert "wheels" not in locked(project)["demo-alpha"]


def test_the_key_holds_the_source_and_the_marker_says_that_it_is_not_sealed(project: Project, index: Index) -> None:
    sdist = add_source(project, index, "demo-source")
    ask(project, "demo-source", "demo-alpha==1.0", **{"allow-build": ["demo-source"]})
    first = provision(project)
    assert first.report["environment"]["sealed"] is False
    found = facts(project)
    assert {"name": "demo-source", "version": "1.0", "sha256": index.sha256(sdist.name)} in found["packages"]
    assert (found["sealed"], found["unsealed"]) == (False, ["demo-source==1.0: it is built here, from source"])
    verified = project.aml("verify", "--json", "-").expect()
    assert verified.json()["unsealed"] == found["unsealed"]
    assert "not sealed: demo-source==1.0: it is built here, from source" in verified.err
    make_sdist(
        index.folder,
        write_source(project.folder.parent / "new", "demo-source", extra="def files():\n    return {}\n"),
        "demo-source",
    )
    project.aml("lock", "--force").expect()
    rebuilt = provision(project)
    assert rebuilt.tells("demo-source 1.0 has other bytes")
    assert rebuilt.report["environment"]["key"] != first.report["environment"]["key"]


def test_a_source_with_other_bytes_than_the_lock_says_is_never_built(
    project: Project, index: Index, tmp_path: Path
) -> None:
    add_source(project, index, "demo-source")
    ask(project, "demo-source", **{"allow-build": ["demo-source"]})
    project.aml("lock").expect()
    extra = f"open({str(tmp_path / 'ran')!r}, 'w')\n\n\ndef files():\n    return {{}}\n"
    forged = make_sdist(tmp_path, write_source(tmp_path / "forged", "demo-source", extra=extra), "demo-source")
    index.replaced[forged.name] = forged.read_bytes()
    failed = project.aml("provision", "--json", "-", env={"UV_CACHE_DIR": str(tmp_path / "cold")}).expect(5)
    assert failed.json()["error"]["code"] == "AML_INTEGRITY"
    assert not (tmp_path / "ran").exists()
    assert [*(project.aml_root / "envs").iterdir()] == []


@pytest.mark.parametrize("source", ["auto", "none"], ids=["uv", "pip"])
def test_a_build_that_fails_is_told_in_its_own_words(project: Project, index: Index, source: str) -> None:
    add_source(project, index, "demo-source", extra="raise SystemExit('my compiler is missing')\n")
    ask(project, "demo-source", **{"allow-build": ["demo-source"]})
    project.aml("lock").expect()
    project.manifest(uv={"source": source})
    failed = project.aml("provision", "--json", "-").expect(6)
    assert failed.json()["error"]["code"] == "AML_VENV_FAILED"
    assert "my compiler is missing" in failed.err


def test_uv_and_pip_build_the_same_from_one_source(project: Project, index: Index) -> None:
    add_source(project, index, "demo-source")
    ask(project, "demo-source", **{"allow-build": ["demo-source"]})
    by_uv = provision(project).report["environment"]
    project.manifest(uv={"source": "none"})
    by_pip = provision(project, "--force").report["environment"]
    assert facts(project)["backend"] == "pip"
    assert [by_pip[name] for name in ("key", "env_digest", "sealed")] == [by_uv["key"], by_uv["env_digest"], False]


# --- overrides


def test_an_override_beats_what_a_package_demands_and_is_an_input(project: Project, index: Index) -> None:
    make_wheel(index.folder, "demo-strict", "1.0", requires=["demo-alpha==1.0"])
    ask(project, "demo-strict")
    provision(project)
    ask(project, "demo-strict", overrides=["demo-alpha == 2.0"])
    after = provision(project)
    assert after.tells("overrides: + demo-alpha==2.0 (aml.toml)")
    assert after.tells("demo-alpha 1.0 → 2.0")
    assert locked(project)["demo-alpha"]["version"] == "2.0"
    assert inputs(project)["overrides"] == ["demo-alpha==2.0"]


def test_an_override_is_no_requirement(project: Project) -> None:
    ask(project, "demo-alpha==1.0", overrides=["demo-beta==1.0"])
    provision(project)
    assert locked(project).keys() == {"demo-alpha"}


# --- words for uv


def uv_calls(project: Project, *words: str) -> list[list[str]]:
    """Run a verb and give the arguments of each uv that it started (strace)."""
    strace = shutil.which("strace")
    if strace is None:
        pytest.skip("strace is not installed")
    log = project.folder.parent / "log"
    options: list[str | Path] = [
        "-f",
        "-qq",
        "-s",
        "4096",
        "-v",
        "-e",
        "trace=execve",
        "-e",
        "status=successful",
        "-o",
        log,
    ]
    argv = [strace, *options, "--", sys.executable, "-m", "aml_nox", *words]
    run(argv, env=project.environment(), cwd=project.folder).expect()
    found = [
        json.loads(line.partition(", ")[2].partition("], ")[0] + "]")
        for line in log.read_text().splitlines()
        if "/uv" in line.partition(", ")[0]
    ]
    assert found
    return [call[1:] for call in found]


def after(call: list[str], word: str) -> str | None:
    return call[call.index(word) + 1] if word in call else None


def test_the_backend_of_torch_is_the_same_for_compiling_and_installing(project: Project) -> None:
    ask(project, "demo-alpha==1.0", **{"torch-backend": "cpu"})
    calls = uv_calls(project, "provision")
    own = [call for call in calls if call[0] == "pip" and "--no-deps" not in call]  # uv's own wheels are none of torch
    assert [(call[1], after(call, "--torch-backend")) for call in own] == [("compile", "cpu"), ("sync", "cpu")]
    assert inputs(project)["torch-backend"] == "cpu"


def test_another_backend_of_torch_locks_anew(project: Project) -> None:
    first = provision(project)
    project.manifest(environment={"torch-backend": "cpu"})
    changed = provision(project)
    assert changed.lock_changed
    assert changed.tells("torch-backend: none → cpu")
    assert not changed.changed, "the same packages"
    assert changed.environment == first.environment


@pytest.mark.parametrize("mode", ["copy", "hardlink", None])
def test_the_link_mode_is_handed_on_where_it_is_given(project: Project, mode: str | None) -> None:
    project.manifest(environment={"link-mode": mode})
    calls = uv_calls(project, "provision")
    assert [after(call, "--link-mode") for call in calls if call[:2] == ["pip", "sync"]] == [mode]


def test_no_word_for_building_is_said_but_for_what_is_named(project: Project, index: Index) -> None:
    add_source(project, index, "demo-source")
    ask(project, "demo-source", **{"allow-build": ["demo-source"]})
    for call in uv_calls(project, "provision"):
        if call[:2] in (["pip", "compile"], ["pip", "sync"]):
            assert after(call, "--only-binary") == ":all:"
    own = [call for call in uv_calls(project, "provision", "--force") if call[:2] == ["pip", "sync"]]
    assert [after(call, "--no-binary") for call in own] == ["demo-source"]


# --- environments


def test_a_named_environment_adds_to_lists_and_replaces_single_values(project: Project, index: Index) -> None:
    for name in ("demo-source", "demo-other"):
        add_source(project, index, name)
    ask(
        project, "demo-source", **{"allow-build": ["demo-source"], "link-mode": "copy", "constraints": ["demo-alpha<2"]}
    )
    project.manifest(
        environments={
            "gpu": {
                "requirements": ["demo-other", "demo-alpha"],
                "allow-build": ["demo-other"],
                "link-mode": "hardlink",
            }
        }
    )
    provision(project)
    provision(project, "--env", "gpu")
    base, gpu = current(project), current(project, "gpu")
    assert locked(project).keys() == {"demo-source"}
    assert locked(project, "pylock.gpu.toml").keys() == {"demo-source", "demo-other", "demo-alpha"}
    assert locked(project, "pylock.gpu.toml")["demo-alpha"]["version"] == "1.1", "the constraint of the base one holds"
    assert (site_packages(base) / "demo_source.py").stat().st_nlink == 1
    assert (site_packages(gpu) / "demo_alpha" / "cli.py").stat().st_nlink > 1
    unsealed = json.loads(marker(gpu).read_text())["unsealed"]
    assert unsealed == [f"{name}==1.0: it is built here, from source" for name in ("demo-other", "demo-source")]
