"""What the digests hold: the vectors of docs/digests.md, laws of order and spelling, and the shell's own tools."""

from __future__ import annotations

import base64
import hashlib
import json
import random
import shlex
import sys
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import tomlkit
from hypothesis import given, settings
from hypothesis import strategies as st

from aml_nox import envdigest, manifest, plan, requirements
from aml_nox.editables import Editable
from aml_nox.plan import Artifact, EnvironmentPlan, Target
from tests.support.oracle import needs
from tests.support.processes import run
from tests.support.project import Project, hermetic
from tests.support.provisioning import current, site_packages

pytest_plugins = ["tests.support.ready"]

VECTORS = Path(__file__).parents[1] / "docs" / "vectors"
LAW = settings(deadline=None, max_examples=60)  # no example is judged by how long it takes
CASES = {
    name: json.loads((VECTORS / f"{name}.json").read_text("utf-8"))["cases"]
    for name in ("key", "manifest", "environment")
}


def vectors(name: str) -> pytest.MarkDecorator:
    cases = CASES[name]
    return pytest.mark.parametrize("case", cases, ids=[case["name"] for case in cases])


def declared_in(folder: Path, text: str) -> plan.Inputs:
    """Read what the manifest with this text declares, as a lock would depend on it."""
    parsed = manifest.parse(text.encode(), folder / "aml.toml")
    return plan.inputs(parsed, parsed.environment(), requirements.declare(parsed))


# --- the vectors


@vectors("key")
def test_a_key_is_as_specified(case: dict[str, Any]) -> None:
    artifacts = tuple(Artifact(**one) for one in case["artifacts"])
    target = Target(**case["target"], markers={}, tags=())
    editables = tuple(InPlace(**one) for one in case["editables"])
    wanted = EnvironmentPlan(name="default", artifacts=artifacts, target=target, editables=editables)
    assert hashlib.sha256(case["expected"]["canonical"].encode()).hexdigest() == case["expected"]["key"]
    assert wanted.key == case["expected"]["key"]


@vectors("manifest")
def test_a_manifest_digest_is_as_specified(case: dict[str, Any], tmp_path: Path) -> None:
    fill(tmp_path, [{"path": name, **one} for name, one in case["files"].items()])
    inputs = declared_in(tmp_path, case["aml.toml"])
    assert inputs.values == case["inputs"]
    assert plan.canonical(inputs.values).decode() == case["expected"]["canonical"]
    assert inputs.digest == case["expected"]["digest"]


@pytest.mark.parametrize("place", ["here", "a place/with spaces, $x and é"])
@vectors("environment")
def test_an_environment_digest_is_as_specified_wherever_it_lies(
    case: dict[str, Any], tmp_path: Path, place: str
) -> None:
    environment = tmp_path / place
    (environment / case["site"]).mkdir(parents=True)
    fill(environment, case["files"])
    content = envdigest.compute(environment, case["interpreter"])
    assert content.manifest.decode() == case["expected"]["env.manifest.json"]
    assert content.digest == case["expected"]["env_digest"]


def test_the_vectors_of_one_rule_agree() -> None:
    """Cases whose reason says that their digest is another's have that digest, and no others."""
    known = {case["name"]: case["expected"]["env_digest"] for case in CASES["environment"]}
    told = {case["name"] for case in CASES["environment"] if "that of" in case.get("why", "")}
    assert {name for name, digest in known.items() if digest == known["installed by uv"]} == {"installed by uv", *told}


def test_the_vectors_are_what_the_second_implementation_computes(fresh_home: Path) -> None:
    argv: list[str | Path] = [sys.executable, VECTORS / "reference.py", "--check"]
    run(argv, env=hermetic(fresh_home, fresh_home), cwd=fresh_home).expect()
    assert "aml_nox" not in (VECTORS / "reference.py").read_text("utf-8")


class InPlace(Editable):
    """A project in place whose digest is given."""

    def __init__(self, *, name: str, path: str, digest: str) -> None:
        super().__init__(name=name, path=path, files=(), dependencies=())
        object.__setattr__(self, "given", digest)

    @property
    def digest(self) -> str:
        return str(getattr(self, "given"))  # noqa: B009 - set past the slots of a frozen class


def fill(folder: Path, files: list[dict[str, Any]]) -> None:
    for one in files:
        path = folder / one["path"]
        path.parent.mkdir(parents=True, exist_ok=True)
        if "link" in one:
            path.symlink_to(one["link"])
        elif "base64" in one:
            path.write_bytes(base64.b64decode(one["base64"]))
        else:
            path.write_bytes(one["text"].replace("{environment}", str(folder)).encode())


# --- by hand


def test_a_distribution_digest_is_recomputed_by_sha256sum_sed_and_sort_alone(ready: Project) -> None:
    environment = current(ready)
    known = json.loads((environment / envdigest.MANIFEST).read_bytes())
    for tool in ("sha256sum", "sed", "sort", "sh"):
        needs(tool)
    script = f"""\
cd {shlex.quote(str(site_packages(environment)))}
{{
  sha256sum demo_alpha/* demo_alpha-1.0.dist-info/METADATA demo_alpha-1.0.dist-info/WHEEL \\
    demo_alpha-1.0.dist-info/entry_points.txt | sed 's,  ,  site/,'
  echo 'launcher:demo_alpha.cli:main  bin/demo-alpha'
}} | LC_ALL=C sort | sha256sum | sed 's, .*,,'
"""
    told = run(["sh", "-c", script], env=ready.environment(), cwd=ready.folder).expect().out
    assert told.strip() == known["distributions"]["demo-alpha==1.0"]["digest"]


def test_the_environment_digest_is_what_sha256sum_says_of_the_manifest(ready: Project) -> None:
    environment = current(ready)
    told = run([needs("sha256sum"), environment / envdigest.MANIFEST], env=ready.environment(), cwd=ready.folder)
    assert (
        told.expect().out.split()[0] == ready.aml("verify", "--json", "-").expect().json()["environment"]["env_digest"]
    )


# --- the manifest digest: laws


NAMES = st.lists(st.from_regex(r"[a-z]([a-z0-9]{0,3}-[a-z])?[a-z0-9]{0,3}", fullmatch=True), min_size=1, max_size=3)
SPECIFIERS = st.lists(
    st.builds(
        "".join,
        st.tuples(st.sampled_from(["==", ">=", "<", "~=", "!="]), st.from_regex(r"[1-9]\.[0-9]", fullmatch=True)),
    ),
    max_size=2,
    unique=True,
)
MARKERS = st.sampled_from(["", "python_version < '3.12'", "sys_platform == 'linux' and extra != 'x'"])
MEANT = st.tuples(NAMES.map("-".join), SPECIFIERS, st.lists(st.sampled_from(["x", "y-z"]), unique=True), MARKERS)
MANY = st.lists(MEANT, max_size=4, unique_by=lambda one: one[0])
Meant = tuple[str, list[str], list[str], str]


def spell(meant: Meant, how: random.Random) -> str:
    """Write one requirement in one of the ways that mean it."""
    name, specifiers, extras, marker = meant
    name = "".join(how.choice([char.upper(), char]) if char != "-" else how.choice("-_.") for char in name)
    shown = how.sample([one.replace("-", how.choice("-_.")).upper() for one in extras], len(extras))
    text = name + how.choice(["", " "]) + (f"[{how.choice([',', ' , ']).join(shown)}]" if shown else "")
    text += how.choice([" ", ""]) + how.choice([",", " , "]).join(how.sample(specifiers, len(specifiers)))
    quoted = marker.replace("'", '"') if how.random() < 0.5 else marker
    return f"{text.strip()} ; {quoted}" if marker else text


def write(folder: Path, groups: dict[str, list[Meant]], how: random.Random) -> str:
    """Declare all of it in aml.toml and in files below *folder*; which goes where, *how* decides."""
    inline: dict[str, list[str]] = {"requirements": [], "constraints": [], "overrides": []}
    files = {name: ["# a comment", ""] for name in ("top.txt", "deep/leaf.txt", "limits.txt", "deep/limits.txt")}
    places = {"requirements": ["top.txt", "deep/leaf.txt"], "constraints": ["limits.txt", "deep/limits.txt"]}
    for group, all_meant in groups.items():
        for meant in how.sample(all_meant, len(all_meant)):
            text = spell(meant, how)
            if group == "overrides" or how.random() < 0.5:
                inline[group].append(text)
            else:
                text = text.replace(" ", " \\\n ", 1) if how.random() < 0.3 else text
                files[how.choice(places[group])].append(text + how.choice(["", "  # why", " "]))
    files["top.txt"].insert(how.randrange(3), "-r deep/leaf.txt")
    files["deep/leaf.txt"].append("--constraint ../limits.txt")
    files["limits.txt"].append("-r deep/limits.txt")
    (folder / "deep").mkdir(parents=True, exist_ok=True)
    for name, lines in files.items():
        (folder / name).write_bytes(how.choice(["\n", "\r\n"]).join([*lines, ""]).encode())
    environment = {**inline, "requirements-files": ["top.txt"]}
    return tomlkit.dumps({"python": {"version": "3.11"}, "environment": environment})


@LAW
@given(
    groups=st.fixed_dictionaries({"requirements": MANY, "constraints": MANY, "overrides": MANY}),
    first=st.randoms(use_true_random=False),
    second=st.randoms(use_true_random=False),
)
def test_order_spelling_spacing_comments_and_inclusion_never_change_the_manifest_digest(
    tmp_path_factory: pytest.TempPathFactory,
    groups: dict[str, list[Meant]],
    first: random.Random,
    second: random.Random,
) -> None:
    one, other = (tmp_path_factory.getbasetemp() / name for name in ("one", "other"))
    assert declared_in(one, write(one, groups, first)) == declared_in(other, write(other, groups, second))


@LAW
@given(
    groups=st.fixed_dictionaries({"requirements": MANY, "constraints": MANY, "overrides": MANY}),
    others=st.fixed_dictionaries({"requirements": MANY, "constraints": MANY, "overrides": MANY}),
)
def test_other_requirements_have_another_manifest_digest(
    tmp_path_factory: pytest.TempPathFactory, groups: dict[str, list[Meant]], others: dict[str, list[Meant]]
) -> None:
    """Equal digests mean equal sets: of names, specifiers, extras and markers, in each of the three roles."""
    folder, how = tmp_path_factory.getbasetemp(), random.Random(0)  # noqa: S311 - no secret
    before, after = (declared_in(folder, write(folder, each, how)).digest for each in (groups, others))
    assert (before == after) == (meaning(groups) == meaning(others))


def meaning(groups: dict[str, list[Meant]]) -> object:
    return {
        group: {(name, frozenset(specifiers), frozenset(extras), marker) for name, specifiers, extras, marker in each}
        for group, each in groups.items()
    }


BASE = """\
[python]
version = "3.11"
[index]
url = "https://index.example/simple"
strategy = "first-index"
exclude-newer = 2026-01-01T00:00:00Z
extra = [{name = "one", url = "https://one.example/simple"}, {name = "two", url = "https://two.example/simple"}]
[environment]
requirements = ["numpy>=2", "torch[gpu]==2.1; python_version < '3.13'", "wheeled @ https://x.example/wheeled-1-py3-none-any.whl"]
constraints = ["idna<4"]
overrides = ["six==1.16"]
allow-build = ["old-one"]
torch-backend = "cpu"
"""
CHANGES = {
    "a name": ("numpy>=2", "numpyro>=2"),
    "a version": ("numpy>=2", "numpy>=3"),
    "a trailing zero of a compatible release": ("idna<4", "idna~=4.0.0"),
    "an operator": ("numpy>=2", "numpy>2"),
    "a marker": ("python_version < '3.13'", "python_version < '3.12'"),
    "a marker that is gone": ("; python_version < '3.13'", ""),
    "an extra": ("torch[gpu]", "torch[cpu]"),
    "one more": ('"numpy>=2",', '"numpy>=2", "scipy",'),
    "one less": ('"numpy>=2",', ""),
    "the URL of a wheel": ("//x.example", "//y.example"),
    "the path of a URL, by case": ("x.example/wheeled", "x.example/Files/wheeled"),
    "Python": ('version = "3.11"', 'version = "3.11.7"'),
    "the index": ("index.example/simple", "index.example/Simple"),
    "another strategy": ("first-index", "unsafe-best-match"),
    "the order of indexes": (
        '{name = "one", url = "https://one.example/simple"}, {name = "two", url = "https://two.example/simple"}',
        '{name = "two", url = "https://two.example/simple"}, {name = "one", url = "https://one.example/simple"}',
    ),
    "a day": ("2026-01-01", "2026-01-02"),
    "no day": ("exclude-newer = 2026-01-01T00:00:00Z\n", ""),
    "what may be built": ("old-one", "new-one"),
    "a backend": ('"cpu"', '"cu128"'),
    "a constraint that becomes a requirement": (
        'constraints = ["idna<4"]',
        'requirements-files = ["r.txt"]',
    ),
    "a constraint that becomes an override": (
        'constraints = ["idna<4"]\noverrides = ["six==1.16"]',
        'overrides = ["six==1.16", "idna<4"]',
    ),
}


@pytest.mark.parametrize(("old", "new"), CHANGES.values(), ids=CHANGES)
def test_each_change_of_meaning_changes_the_manifest_digest(tmp_path: Path, old: str, new: str) -> None:
    (tmp_path / "r.txt").write_text("idna<4\n")
    assert BASE.count(old) == 1
    assert declared_in(tmp_path, BASE).digest != declared_in(tmp_path, BASE.replace(old, new)).digest


def test_an_extra_index_beside_the_default_one_is_not_the_index_itself(tmp_path: Path) -> None:
    head = '[python]\nversion = "3.11"\n[index]\n'
    beside = declared_in(tmp_path, f'{head}extra = [{{name = "x", url = "https://x.example/simple"}}]\n')
    itself = declared_in(tmp_path, f'{head}url = "https://x.example/simple"\n')
    assert beside.digest != itself.digest


MEANINGLESS = {
    "uv": ("[python]", '[uv]\nversion = "==0.13.9"\n[python]'),
    "the preference": ('version = "3.11"', 'version = "3.11"\npreference = "system"'),
    "the link mode": ('torch-backend = "cpu"', 'torch-backend = "cpu"\nlink-mode = "copy"'),
    "the job": ("[environment]", '[train]\nscript = "train.py"\n[environment]'),
    "limits of time": ("[environment]", '[timeouts]\nuv = "1m"\n[environment]'),
    "another environment": ("[environment]", '[environments.gpu]\nrequirements = ["cupy"]\n[environment]'),
    "a default that is written out": ('strategy = "first-index"\n', ""),
    "spelling of the index": ("https://index.example/simple", "HTTPS://Index.Example:443/simple//"),
    "the same moment": ("2026-01-01T00:00:00Z", "2026-01-01T02:00:00+02:00"),
    "the name of an index": ('name = "one"', 'name = "three"'),
    "comments": ("[environment]", "# why\n[environment] # what"),
}


@pytest.mark.parametrize(("old", "new"), MEANINGLESS.values(), ids=MEANINGLESS)
def test_what_decides_no_lock_does_not_change_the_manifest_digest(tmp_path: Path, old: str, new: str) -> None:
    assert BASE.count(old) == 1
    assert declared_in(tmp_path, BASE) == declared_in(tmp_path, BASE.replace(old, new))


def test_a_hash_that_is_demanded_is_in_the_manifest_digest(tmp_path: Path) -> None:
    text = '[python]\nversion = "3.11"\n[environment]\nrequirements-files = ["r.txt"]\n'
    digests = set()
    for line in ("six==1", f"six==1 --hash=sha256:{'0' * 64}", f"six==1 --hash=sha256:{'1' * 64}"):
        (tmp_path / "r.txt").write_text(line)
        digests.add(declared_in(tmp_path, text).digest)
    assert len(digests) == 3


@pytest.mark.parametrize("name", ["wheels/demo_local-1.0-py3-none-any.whl", "place/pyproject.toml", "place/setup.py"])
def test_the_bytes_of_local_sources_are_in_the_manifest_digest(tmp_path: Path, name: str) -> None:
    for folder in ("wheels", "place"):
        (tmp_path / folder).mkdir()
    (tmp_path / "wheels" / "demo_local-1.0-py3-none-any.whl").write_text("1")
    (tmp_path / "place" / "pyproject.toml").write_text('[project]\nname = "place"\nversion = "1"\n')
    text = """\
[python]
version = "3.11"
[environment]
requirements = ["demo-local @ ./wheels/demo_local-1.0-py3-none-any.whl"]
editable = ["place"]
"""
    before = declared_in(tmp_path, text).digest
    with (tmp_path / name).open("a") as stream:
        stream.write("\n")
    assert declared_in(tmp_path, text).digest != before


def test_environments_of_one_manifest_have_digests_of_their_own(tmp_path: Path) -> None:
    parsed = manifest.parse(BASE.encode() + b"[environments.gpu]\n", tmp_path / "aml.toml")
    digests = {plan.inputs(parsed, one, requirements.declare(parsed, one.name)).digest for one in parsed.environments}
    assert len(digests) == 2


# --- the key: laws


HASHES = st.from_regex(r"[0-9a-f]{64}", fullmatch=True)
WORDS = st.from_regex(r"[a-z0-9.]{1,6}", fullmatch=True)
ARTIFACTS = st.lists(
    st.builds(Artifact, name=WORDS, version=WORDS, sha256=HASHES), max_size=5, unique_by=lambda a: a.name
)
TARGETS = st.builds(
    Target,
    implementation=WORDS,
    version=WORDS,
    soabi=WORDS,
    platform=WORDS,
    markers=st.just({}),
    tags=st.just(()),
)
PLACES = st.lists(st.builds(InPlace, name=WORDS, path=WORDS, digest=HASHES), max_size=2)


def key_of(artifacts: list[Artifact], target: Target, editables: list[InPlace]) -> str:
    wanted = EnvironmentPlan(name="x", artifacts=tuple(artifacts), target=target, editables=tuple(editables))
    return wanted.key


@LAW
@given(artifacts=ARTIFACTS, target=TARGETS, editables=PLACES, how=st.randoms(use_true_random=False))
def test_order_and_origin_of_artifacts_never_change_a_key(
    artifacts: list[Artifact], target: Target, editables: list[InPlace], how: random.Random
) -> None:
    moved = [
        replace(one, url=how.choice([None, "https://x.example"]), path=how.choice([None, "x.whl"]))
        for one in how.sample(artifacts, len(artifacts))
    ]
    other = replace(target, markers={"os_name": "x"}, tags=("py3-none-any",))
    assert key_of(artifacts, target, editables) == key_of(moved, other, editables)


@LAW
@given(
    one=st.tuples(ARTIFACTS, TARGETS, PLACES),
    other=st.tuples(ARTIFACTS, TARGETS, PLACES),
)
def test_keys_are_equal_only_for_the_same_bytes_on_the_same_target(
    one: tuple[list[Artifact], Target, list[InPlace]], other: tuple[list[Artifact], Target, list[InPlace]]
) -> None:
    def sides(artifacts: list[Artifact], target: Target, editables: list[InPlace]) -> object:
        packages = sorted((each.name, each.version, each.sha256) for each in artifacts)
        return packages, target.identity, [each.identity for each in editables]

    assert (key_of(*one) == key_of(*other)) == (sides(*one) == sides(*other))


@pytest.mark.parametrize("field", ["name", "version", "sha256"])
def test_each_member_of_an_artifact_is_in_the_key(field: str) -> None:
    target = Target(implementation="i", version="v", soabi="s", platform="p", markers={}, tags=())
    one = Artifact(name="a", version="1", sha256="0")
    assert key_of([one], target, []) != key_of([replace(one, **{field: "2"})], target, [])  # type: ignore[arg-type]


@pytest.mark.parametrize("field", ["implementation", "version", "soabi", "platform"])
def test_each_member_of_a_target_is_in_the_key(field: str) -> None:
    target = Target(implementation="i", version="v", soabi="s", platform="p", markers={}, tags=())
    assert key_of([], target, []) != key_of([], replace(target, **{field: "other"}), [])  # type: ignore[arg-type]


def test_the_name_of_an_environment_is_not_in_its_key() -> None:
    target = Target(implementation="i", version="v", soabi="s", platform="p", markers={}, tags=())
    keys = {EnvironmentPlan(name=name, artifacts=(), target=target).key for name in ("default", "gpu")}
    assert len(keys) == 1


def test_the_vectors_hold_valid_toml() -> None:
    for case in CASES["manifest"]:
        tomllib.loads(case["aml.toml"])
