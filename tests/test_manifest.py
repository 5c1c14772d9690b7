"""aml.toml: what is read, what is refused, and that its three descriptions are one."""

from __future__ import annotations

import dataclasses
import json
import re
import runpy
import tomllib
from contextlib import nullcontext
from datetime import UTC, date, datetime, time
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, cast

import jsonschema
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from aml_nox import manifest
from aml_nox.errors import AmlError, Code
from aml_nox.faults import FaultError, key_path
from aml_nox.keys import ANY_USE, REQUIRED, Format
from aml_nox.manifest import FORMAT, KEYS, TABLES, Environment, Manifest, Register

if TYPE_CHECKING:
    from aml_nox.keys import Key, Table

ROOT = Path(__file__).parents[1]
SAMPLES = Path(__file__).parent / "manifests"
VALID = sorted((SAMPLES / "valid").glob("*.toml"))
INVALID = sorted((SAMPLES / "invalid").glob("*.toml"))
SECRET = "hunter2"  # noqa: S105 - the password of every sample that has one
SCHEMA = jsonschema.Draft7Validator(manifest.schema())
EXPECTED = re.compile(r"# expect(?P<semantic> \(semantic\))?: (?P<where>aml\.toml:\d+: (?P<key>.+?)) :: (?P<needle>.+)")
PYTHON = '[python]\nversion = "3.11"\n'


class Expected(NamedTuple):
    """A fault that a sample announces in its first lines; the schema cannot see a semantic one."""

    where: str
    key: str
    needle: str
    is_semantic: bool


def read(text: str) -> Manifest:
    return manifest.parse(text.encode(), SAMPLES / "aml.toml")


def refusal(data: bytes, folder: Path = SAMPLES) -> str:
    with pytest.raises(AmlError) as caught:
        manifest.parse(data, folder / "aml.toml")
    assert caught.value.code is Code.MANIFEST
    return caught.value.message


def refused(text: str) -> str:
    """Give the refusal of some lines below a right ``[python]``, whose first line is line 3."""
    return refusal((PYTHON + text).encode())


def announced(sample: Path) -> list[Expected]:
    matches = EXPECTED.finditer(sample.read_text(encoding="utf-8"))
    return [Expected(each["where"], each["key"], each["needle"], bool(each["semantic"])) for each in matches]


def as_json(value: object) -> object:
    """Give a TOML value as editors hand it to a schema: times are strings."""
    if isinstance(value, dict):
        return {key: as_json(each) for key, each in value.items()}
    if isinstance(value, list):
        return [as_json(each) for each in value]
    return value.isoformat() if isinstance(value, date | datetime | time) else value


def schema_faults(sample: Path) -> set[str]:
    """Give the key paths that the schema refuses; a missing or an unknown key is refused at its table."""
    document = as_json(tomllib.loads(sample.read_text(encoding="utf-8")))
    return {key_path(tuple(error.absolute_path)) for error in SCHEMA.iter_errors(document)}


def own_value(key: Key) -> object:
    """Give the value of a key's example, as TOML gives it."""
    return tomllib.loads(f"value = {key.kind.example}")["value"]


def identify(value: object) -> str:
    match value:
        case Path():
            return value.stem
        case Expected():
            return value.key
        case _:
            return f"{value.table}.{value.name}"  # type: ignore[attr-defined]


# Samples: parser and schema ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sample", VALID, ids=identify)
def test_a_valid_sample_is_accepted_by_parser_and_schema(sample: Path) -> None:
    manifest.parse(sample.read_bytes(), sample.parent / "aml.toml")
    assert schema_faults(sample) == set()


@pytest.mark.parametrize("sample", INVALID, ids=identify)
def test_all_faults_of_a_sample_are_told_at_once_in_order_of_lines(sample: Path) -> None:
    lines = [line.split(": ", 2) for line in refusal(sample.read_bytes(), sample.parent).split("\n")]
    assert sorted(f"{where}: {key}" for where, key, _ in lines) == sorted(each.where for each in announced(sample))
    numbers = [int(where.split(":")[1]) for where, _, _ in lines]
    assert numbers == sorted(numbers)


@pytest.mark.parametrize(
    ("sample", "expected"), [(each, fault) for each in INVALID for fault in announced(each)], ids=identify
)
def test_a_fault_says_what_is_wrong_and_what_to_do(sample: Path, expected: Expected) -> None:
    lines = refusal(sample.read_bytes(), sample.parent).split("\n")
    line = next(line for line in lines if line.startswith(f"{expected.where}: "))
    assert expected.needle in line
    assert ";" in line


@pytest.mark.parametrize("sample", INVALID, ids=identify)
def test_the_schema_refuses_what_is_wrong_by_shape_and_nothing_else(sample: Path) -> None:
    seen = schema_faults(sample)
    for each in announced(sample):
        table = each.key.rpartition(".")[0]
        around = {each.key, table, table.rpartition(".")[0]}
        assert each.is_semantic or seen & around, f"{each.key}: the schema does not see it"
    if all(each.is_semantic for each in announced(sample)):
        assert seen == set()


@pytest.mark.parametrize("sample", INVALID, ids=identify)
def test_no_message_holds_a_password(sample: Path) -> None:
    assert SECRET not in refusal(sample.read_bytes(), sample.parent)


# The table of keys ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("table", [each for each in TABLES if each.name], ids=lambda table: table.name)
def test_a_dataclass_has_the_keys_of_its_table_as_fields(table: Table) -> None:
    fields = {each.name for each in dataclasses.fields(cast("type[Environment]", table.build))}
    own_name = {"name"} if table.build is Environment else set()
    assert fields - own_name == {key.field for key in FORMAT.of(table.name)}


def test_a_manifest_has_the_tables_of_the_document_as_fields() -> None:
    fields = {each.name for each in dataclasses.fields(Manifest)} - {"path", "sha256"}
    assert fields | {"environment"} == {key.field for key in FORMAT.of("")}


@pytest.mark.parametrize("key", KEYS, ids=identify)
def test_the_example_of_a_kind_is_read_by_it_and_fits_its_schema(key: Key) -> None:
    if not (key.table == "" and key.is_required()):
        key.kind.parse(own_value(key))
    jsonschema.validate(as_json(own_value(key)), key.kind.schema())


@pytest.mark.parametrize("key", [key for key in KEYS if key.default not in (REQUIRED, None)], ids=identify)
def test_a_default_is_a_value_that_could_be_written(key: Key) -> None:
    if not key.is_required():
        key.kind.parse(key.default)
        jsonschema.validate(key.default, key.kind.schema())


@pytest.mark.parametrize("key", [key for key in KEYS if key.planned == ANY_USE], ids=identify)
def test_a_planned_key_is_checked_then_refused_and_lifting_it_takes_one_word(key: Key) -> None:
    with pytest.raises(FaultError, match="not supported yet in this version"):
        key.read({key.name: own_value(key)})
    with pytest.raises(FaultError, match="expected"):
        key.read({key.name: object()})
    dataclasses.replace(key, planned="").read({key.name: own_value(key)})


@pytest.mark.parametrize(
    ("table", "name", "others"),
    [
        ("train", "launcher", ["slurm", "ray"]),
    ],
)
def test_of_a_key_that_is_planned_in_part_the_default_is_supported(table: str, name: str, others: list[object]) -> None:
    key = next(key for key in FORMAT.of(table) if key.name == name)
    assert key.read({name: key.default}) == key.read({})
    for other in others:
        with pytest.raises(FaultError, match="supported yet in this version"):
            key.read({name: other})
        assert dataclasses.replace(key, planned="").read({name: other}) == other


LIFTED = Format(tuple(dataclasses.replace(key, planned="") for key in KEYS), TABLES)
DIGESTS = {"linux-x86_64": "0a" * 32}


@pytest.mark.parametrize(
    ("table", "is_right"),
    [
        ({"source": "url"}, False),
        ({"source": "url", "url": "https://files.example.com/uv.zip"}, False),
        ({"source": "url", "sha256": DIGESTS}, False),
        ({"source": "url", "url": "https://files.example.com/uv.zip", "sha256": DIGESTS}, True),
    ],
)
def test_a_download_of_uv_is_pinned_by_url_and_digest(table: dict[str, object], is_right: bool) -> None:  # noqa: FBT001
    with nullcontext() if is_right else pytest.raises(FaultError, match="needs both url and sha256"):
        LIFTED.read("uv", table)


@pytest.mark.parametrize(
    "url",
    ["https://files.example.com/uv", "https://files.example.com/?x=.zip", "https://files.example.com/#.whl", "x.zip"],
)
def test_a_download_of_uv_is_an_archive_or_a_wheel(url: str) -> None:
    with pytest.raises(FaultError, match=r"does not name a|no scheme"):
        LIFTED.read("uv", {"url": url})


@pytest.mark.parametrize(
    ("key", "value"), [("allow-build", ["a b"]), ("allow-build", [""]), ("torch-backend", "CPU"), ("editable", ["~/x"])]
)
def test_names_backends_and_paths_are_checked_strictly(key: str, value: object) -> None:
    with pytest.raises(FaultError, match=r"package.s name|torch backend|not expanded"):
        LIFTED.read("environment", {key: value})


@pytest.mark.parametrize(
    ("table", "raw"),
    [
        ("train.resources", {"cpus": True}),
        ("train.resources", {"gpus": 1.0}),
        ("train", {"script": "t.py", "slurm": {"nodes": True}}),
        ("train", {"script": "t.py", "ray": {"share": 0.5}}),
    ],
)
def test_a_boolean_or_a_fraction_is_no_count(table: str, raw: dict[str, object]) -> None:
    with pytest.raises(FaultError, match=r"integer.*, found a (boolean|float)"):
        LIFTED.read(table, raw)


def test_a_place_is_a_path_or_a_url_and_as_a_url_holds_no_password() -> None:
    assert LIFTED.read("python", {"version": "3.11", "downloads-json": "https://files.example.com/list.json"})
    with pytest.raises(FaultError, match="user name or password"):
        LIFTED.read("python", {"version": "3.11", "downloads-json": f"https://me:{SECRET}@files.example.com/list.json"})


@pytest.mark.parametrize(
    ("table", "name", "advice"), [("uv", "timeouts", "known are"), ("python", "gpus", "it belongs")]
)
def test_a_key_that_stands_in_one_other_table_is_sent_there(table: str, name: str, advice: str) -> None:
    with pytest.raises(FaultError, match=f"unknown key; {advice}"):
        LIFTED.read(table, {"version": "3.11", name: 1})


@pytest.mark.parametrize(("key", "least"), [("cpus", 1), ("gpus", 0)])
def test_a_count_has_a_least_value(key: str, least: int) -> None:
    assert LIFTED.read("train.resources", {key: least})
    with pytest.raises(FaultError, match=f"{least} or more"):
        LIFTED.read("train.resources", {key: least - 1})


@pytest.mark.parametrize("path", ["aml.schema.json", "docs/errors.md", "docs/manifest.md"])
def test_a_committed_description_is_what_the_tables_generate(path: str) -> None:
    pages = runpy.run_path(str(ROOT / "docs" / "generate.py"))["pages"]()
    assert (ROOT / path).read_text(encoding="utf-8") == pages[path]


def test_the_pages_name_every_key_and_every_code() -> None:
    assert all(f"| `{key.name}` |" in manifest.reference() for key in KEYS if key.table)
    errors = (ROOT / "docs" / "errors.md").read_text(encoding="utf-8")
    assert all(f"| `{code}` | {code.status} |" in errors for code in Code)


def test_the_schema_is_a_schema() -> None:
    jsonschema.Draft7Validator.check_schema(json.loads(json.dumps(manifest.schema())))


# Values --------------------------------------------------------------------------------------------------------------


def test_all_but_the_python_version_and_the_program_has_a_default() -> None:
    found = read(PYTHON + '[train]\nscript = "train.py"')
    assert found.train is not None
    assert (found.uv.source, found.python.preference, found.index.name) == ("auto", "managed", "default")
    assert (found.index.url, found.index.strategy, found.index.exclude_newer_text) == (None, "first-index", None)
    assert (found.train.isolation, found.train.timeout, found.train.grace) == ("prefer", None, 10.0)
    assert (found.train.max_parallel, found.train.launcher, found.train.gates) == (1, "local", ())
    times = found.timeouts
    assert (times.uv, times.python, times.venv, times.install, times.lock_wait) == (600, 600, 300, 600, 1200)
    assert read(PYTHON).train is None


def test_values_come_out_typed() -> None:
    found = manifest.load(SAMPLES / "valid" / "full.toml")
    assert found.train is not None
    assert (found.folder, found.uv.path) == (SAMPLES / "valid", Path("tools/uv"))
    assert found.index.exclude_newer == datetime(2026, 11, 1, tzinfo=UTC)
    assert found.index.exclude_newer_text == "2026-11-01T00:00:00Z"
    assert found.train.env == (("OMP_NUM_THREADS", "1"), ("EMPTY", ""))
    accuracy, loss, f1 = found.train.gates
    assert (accuracy.metric, accuracy.min, accuracy.max) == ("accuracy", 0.95, 1.0)
    assert (loss.metric, loss.min, loss.max, loss.better) == ("loss", None, -0.0005, None)
    assert (loss.required, loss.if_no_baseline) == (True, "pass")
    assert (f1.better, f1.min_gain, f1.min_relative_gain) == ("higher", -0.01, 1.0)
    assert (f1.required, f1.if_no_baseline) == (False, "fail")
    assert found.train.register == Register(name="digits-9")
    assert (found.train.evaluate, found.train.dataset) == (Path("judge/evaluate.py"), Path("data/digits"))


def test_a_named_environment_appends_to_the_base_and_has_its_own_lock_and_link() -> None:
    found = manifest.load(SAMPLES / "valid" / "full.toml")
    base, gpu, plain = (found.environment(name) for name in ("default", "gpu", "x-9"))
    assert [each.name for each in gpu.requirements] == ["numpy", "scikit-learn", "torch"]
    assert [each.name for each in gpu.constraints] == ["scipy", "triton"]
    assert dataclasses.replace(plain, name="default") == base
    assert (base.lock_name, base.link_name) == ("pylock.toml", ".venv")
    assert (gpu.lock_name, gpu.link_name) == ("pylock.gpu.toml", ".venv-gpu")


def test_scalars_of_a_named_environment_replace_those_of_the_base_where_given() -> None:
    base = dataclasses.replace(read(PYTHON).environment(), torch_backend="cpu", link_mode="copy")
    over = dataclasses.replace(base, name="gpu", torch_backend="cu128", link_mode=None).over(base)
    assert (over.name, over.torch_backend, over.link_mode) == ("gpu", "cu128", "copy")


def test_an_unknown_environment_is_a_usage_error_that_names_the_likely_one() -> None:
    with pytest.raises(AmlError) as caught:
        manifest.load(SAMPLES / "valid" / "full.toml").environment("gpuu")
    assert (caught.value.code, caught.value.hint) == (Code.USAGE, 'did you mean "gpu"?')


@pytest.mark.parametrize(
    ("written", "seconds"), [("90", 90), ('"90s"', 90), ('"10m"', 600), ('"2h"', 7200), ("31622400", 31622400)]
)
def test_a_time_limit_is_seconds_or_a_number_with_a_unit(written: str, seconds: float) -> None:
    found = read(f"{PYTHON}[timeouts]\nvenv = {written}").timeouts.venv
    assert (type(found), found) == (float, seconds)


@pytest.mark.parametrize(
    "written", ["0", "-1", "1.0", "true", '""', '"0s"', '"10"', '"10 m"', '"1.5h"', '"10M"', '"1d"', "31622401", "[]"]
)
def test_any_other_time_limit_is_refused(written: str) -> None:
    assert refused(f"[timeouts]\nvenv = {written}").startswith("aml.toml:4: timeouts.venv: ")


@pytest.mark.parametrize(
    ("written", "needle"),
    [
        ("2026-11-01", "found a date; write"),
        ("12:00:00", "found a time; write"),
        ('"2026-11-01T00:00:00Z"', "found a string; take the quotes away"),
        ("2026-11-01T00:00:00", "has no offset"),
        ("0001-01-01T00:00:00+10:00", "out of range"),
        ("9999-12-31T23:59:59-10:00", "out of range"),
    ],
)
def test_exclude_newer_is_one_moment_on_every_machine(written: str, needle: str) -> None:
    message = refused(f"[index]\nexclude-newer = {written}")
    assert message.startswith("aml.toml:4: index.exclude-newer: ")
    assert needle in message


@pytest.mark.parametrize("number", ["nan", "inf", "-inf", "true", '"1"', "1" + "0" * 400, "2026-01-01"])
def test_a_gate_is_held_against_a_finite_number(number: str) -> None:
    gate = f'[train]\nscript = "t.py"\n[[train.gates]]\nmetric = "m"\nmin = {number}'
    assert refused(gate).startswith("aml.toml:7: train.gates[0].min: ")


@pytest.mark.parametrize("better", ["higher", "lower"])
def test_a_gate_that_compares_names_the_registry_and_may_compare_alone(better: str) -> None:
    gate = f'[train]\nscript = "t.py"\n[[train.gates]]\nmetric = "m"\nbetter = "{better}"'
    assert refused(gate).startswith("aml.toml:7: train.gates[0].better: better than which model?")
    found = read(f'{PYTHON}{gate}\n[train.register]\nname = "digits"').train
    assert found is not None
    assert found.gates[0].better == better


@pytest.mark.parametrize("value", ["hunter2\\u0000", "https://me:hunter2@db.example.com"])
def test_what_is_wrong_with_a_variable_is_told_without_its_value(value: str) -> None:
    message = refused(f'[train]\nscript = "t.py"\nenv = {{ X = "{value}" }}')
    assert message.startswith("aml.toml:5: train.env")
    assert SECRET not in message


@pytest.mark.parametrize("name", ["a", "0", "digits-2", "x" * 64, "con1", "null"])
def test_a_model_has_a_name_that_can_be_a_folder_everywhere(name: str) -> None:
    register = '[train]\nscript = "t.py"\n[train.register]\nname = '
    assert read(f'{PYTHON}{register}"{name}"').train
    for wrong in ("", "..", "A", "a/b", "a.", "a b", "-a", "x" * 65, "con", "nul", "com1", f"{name}\\n"):
        assert refused(f'{register}"{wrong}"').startswith("aml.toml:6: train.register.name: ")


@pytest.mark.parametrize("path", ['"~/uv"', '"${HOME}/uv"', '""', '"a\\u0007b"', "1"])
def test_a_path_is_taken_as_it_is_so_what_looks_expandable_is_refused(path: str) -> None:
    assert refused(f"path = {path}").startswith("aml.toml:3: python.path: ")


# Files and bytes -----------------------------------------------------------------------------------------------------


def test_a_missing_file_says_how_to_make_one(tmp_path: Path) -> None:
    with pytest.raises(AmlError) as caught:
        manifest.load(tmp_path / "aml.toml")
    assert (caught.value.code, caught.value.hint) == (Code.MANIFEST, "`aml-nox init` makes one")


def test_a_folder_in_place_of_the_file_is_a_fault_of_the_user(tmp_path: Path) -> None:
    (tmp_path / "aml.toml").mkdir()
    with pytest.raises(AmlError, match=r"aml\.toml: cannot be read"):
        manifest.load(tmp_path / "aml.toml")


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"\xef\xbb\xbf[python]", "aml.toml:1: starts with a byte-order mark; remove the byte-order mark"),
        ("[python]".encode("utf-16"), "aml.toml:1: not UTF-8 (byte 0: UTF-16's mark); save it as UTF-8"),
        (b"[python]\n# caf\xe9\n", "aml.toml:2: not UTF-8 (byte 14: 0xe9); save it as UTF-8"),
        (b"#" * (1 << 20) + b"\n", "aml.toml: larger than 1 MiB"),
        (b"[python]\nversion = \n", "aml.toml:2: not TOML: Invalid value (column 11); mend the line"),
        (b'[python]\nversion = "3.11"\nversion = "3.12"\n', "aml.toml:3: not TOML: Cannot overwrite a value"),
        (b"[python]\nversion = '''", "aml.toml:2: not TOML: Expected \"'''\"; mend the line"),
        (b"a = " + b"[" * 5000, "aml.toml:1: "),
        (b"a = " + b"1" * 5000, "aml.toml:1: not TOML: Exceeds the limit"),
        (b"a = '\x00'", "aml.toml:1: not TOML: "),
    ],
    ids=range(10),
)
def test_bytes_that_are_no_toml_are_refused_with_their_line(data: bytes, message: str) -> None:
    assert refusal(data).startswith(message)


def test_a_file_of_a_mebibyte_is_still_read() -> None:
    assert manifest.parse((PYTHON + "#").encode().ljust(1 << 20, b"#"), SAMPLES / "aml.toml")


def test_line_ends_of_windows_are_accepted_and_counted() -> None:
    assert read('[python]\r\nversion = "3.11"\r\n').python.version.text == "3.11"
    assert refusal(b'[python]\r\nversion = "3.11"\r\n\r\n[uv]\r\nx = 1').startswith("aml.toml:5: uv.x: ")


def test_a_file_is_named_as_it_was_given_but_for_a_long_absolute_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "other.toml").touch()
    monkeypatch.chdir(tmp_path)
    for path, label in ((Path("sub/other.toml"), "sub/other.toml"), (tmp_path / "sub/other.toml", "other.toml")):
        with pytest.raises(AmlError, match=f"^{re.escape(label)}:1: python.version"):
            manifest.load(path)


def test_the_digest_is_of_the_bytes_that_were_read() -> None:
    assert read(PYTHON) == read(PYTHON)
    assert read(PYTHON).sha256 != read(PYTHON + "\n").sha256


def test_a_key_of_a_loaded_manifest_is_found_again_even_if_the_file_has_changed(tmp_path: Path) -> None:
    path = tmp_path / "aml.toml"
    path.write_text('[python]\n\nversion = "3.11"')
    found = manifest.load(path)
    assert manifest.where(found, ("python", "version")) == "aml.toml:3: python.version"
    path.write_text("= 1")
    assert manifest.where(found, ("python", "version")) == "aml.toml:1: python.version"


# Laws ----------------------------------------------------------------------------------------------------------------


def told(data: bytes) -> list[str]:
    """Give the faults in the bytes of a manifest; anything but a value or faults would be a bug."""
    try:
        manifest.parse(data, SAMPLES / "aml.toml")
    except AmlError as error:
        return [f"{error.code}: {line}" for line in error.message.split("\n")]
    return []


def have_lines(faults: list[str]) -> bool:
    return all(re.match(r"AML_MANIFEST: aml\.toml:\d+: ", line) for line in faults)


@given(st.binary(max_size=80))
@example(b"\xff\xfe\x00")
@example(b"[python]\nversion = 1_0.0")
def test_whatever_the_bytes_no_traceback(data: bytes) -> None:
    assert have_lines(told(data))


NAMES = sorted({key.name for key in KEYS} | {key.table for key in KEYS})
SIGNS = ["=", "[", "]", "{", "}", "[[", "]]", "\n", ",", ".", "'", '"', '"""', "#"]
WORDS = [*NAMES, *SIGNS, *sorted({key.kind.example for key in KEYS})]


@given(st.lists(st.sampled_from(WORDS) | st.text(max_size=3), max_size=30).map(" ".join))
@example("environments.x = 1")
@example("environments = 1\ntrain = {environment = 'x'}")
@example("environment = 1\nenvironments = {a = 1, b = {requirements-files = 1}}\ntrain = {environment = 1}")
@example("[environment]\nrequirements-files = ['a\\u0000b', '" + "x" * 300 + "', 1]")
def test_whatever_the_words_no_traceback(text: str) -> None:
    assert have_lines(told(text.encode("utf-8", errors="replace")))


LEAVES = st.sampled_from([True, False, "", "x", "3.11", "\x00", -1, 0, 1, 1.5, float("nan"), date(2026, 1, 1), time(1)])
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["name", "url", "x"]), inner),
    max_leaves=5,
)


def faults_of(key: Key, value: object) -> list[str]:
    try:
        key.kind.parse(value)
    except FaultError as error:
        return [each.text for each in error.faults]
    return []


@pytest.mark.parametrize("key", KEYS, ids=identify)
@given(value=VALUES)
def test_a_kind_reads_any_value_or_refuses_it_with_a_remedy(key: Key, value: object) -> None:
    assert all(";" in text for text in faults_of(key, value))


@given(st.permutations(['venv = "5m"', "uv = 90", 'install = "1h"', 'python = "2m"', "lock-wait = 1"]))
def test_the_order_of_keys_has_no_meaning(lines: list[str]) -> None:
    texts = ("\n".join([PYTHON, "[timeouts]", *each]) for each in (lines, sorted(lines)))
    assert len({read(text).timeouts for text in texts}) == 1
