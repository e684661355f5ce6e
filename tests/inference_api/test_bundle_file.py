"""Bundle files: what is read, and every refusal with its words, of files that anybody may write."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ValidationError

from common.faults import keys_at
from inference_api.errors import StartupError
from inference_api.settings.bundle_file import (
    MAX_FILE_BYTES,
    Bundle,
    BundleMember,
    MemberDraft,
    RouterSettings,
    RowBounds,
    parse_bundle,
    read_bundle,
)

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "bundle.md"
LIMITS = {"version": 1, "memory_limit": "6GiB", "fast_memory_limit": "2GiB"}
GIB = 2**30


def written(*members: object, **keys: object) -> str:
    return yaml.safe_dump({**LIMITS, **keys, "experts": list(members)})


def parsed(*members: object, **keys: object) -> Bundle:
    return parse_bundle(written(*members, **keys).encode())


def faults_of(content: str | bytes) -> list[str]:
    with pytest.raises(StartupError) as caught:
        parse_bundle(content.encode() if isinstance(content, str) else content)
    return list(caught.value.faults)


def member(**keys: object) -> dict[str, object]:
    return {"name": "a", "source": "owner/a", **keys}


def test_documented_example_is_read() -> None:
    example = DOCUMENT.read_text().split("```yaml\n")[1].split("```")[0]
    bundle = parse_bundle(example.encode())
    assert (bundle.memory_limit, bundle.fast_memory_limit) == (6 * GIB, 2 * GIB)
    general, sql, poet, pair = bundle.members
    assert bundle.default_member is general
    assert (general.quantisation, general.rows, general.pinned) == (
        "int8",
        RowBounds(min=2, max=16),
        True,
    )
    assert general.is_loaded_at_start
    assert poet.is_loaded_at_start
    assert (sql.context, sql.examples, sql.is_loaded_at_start) == (
        1024,
        ("orders per month",),
        False,
    )
    assert (pair.source, pair.draft) == (
        "./models/big",
        MemberDraft(source="./models/small", tokens=4),
    )
    assert pair.speculation == "draft"


def test_defaults_are_those_of_the_contract() -> None:
    bundle = parsed(member())
    assert (bundle.patience_s, bundle.min_residence_s, bundle.load_timeout_s) == (10, 2, 120)
    assert (bundle.max_queue, bundle.router) == (256, None)
    [only] = bundle.members
    assert (only.quantisation, only.rows.min, only.rows.max, only.load) == (
        "auto",
        1,
        None,
        "demand",
    )
    assert (only.speculation, only.pinned, only.context) == ("off", False, None)


@pytest.mark.parametrize(
    ("size", "size_bytes"),
    [("2GiB", 2 * GIB), ("512 MiB", GIB // 2), ("1.5GiB", 3 * GIB // 2), (123456, 123456)],
)
def test_sizes_are_bytes_or_a_number_of_a_unit(size: object, size_bytes: int) -> None:
    assert parsed(member(), memory_limit=size).memory_limit == size_bytes


def test_both_ways_to_write_a_pair_are_one() -> None:
    draft = {"source": "owner/small"}
    short = parsed({"name": "a", "source": "owner/a", "draft": draft}).members[0]
    long = parsed({"name": "a", "target": {"source": "owner/a"}, "draft": draft}).members[0]
    assert (short.source, short.draft, short.speculation) == (
        long.source,
        long.draft,
        long.speculation,
    )


def test_sources_are_found_from_the_folder_of_the_file(tmp_path: Path) -> None:
    for name in ("model", "draft", "heads"):
        (tmp_path / "bundle" / name).mkdir(parents=True)
    file = tmp_path / "bundle" / "bundle.yaml"
    pair = {"source": "./model", "draft": {"source": "draft"}, "medusa_heads": "heads"}
    file.write_text(
        written(member(**pair, speculation="auto"), {"name": "b", "source": "owner/elsewhere"})
    )
    first, second = read_bundle(file).members
    folder = (tmp_path / "bundle").resolve()
    assert (first.source, first.medusa_heads) == (str(folder / "model"), str(folder / "heads"))
    assert first.draft is not None
    assert first.draft.source == str(folder / "draft")
    assert second.source == "owner/elsewhere"


def test_bundle_cannot_be_changed() -> None:
    with pytest.raises(ValidationError):
        parsed(member()).max_queue = 3  # type: ignore[misc]


@pytest.mark.parametrize(
    ("keys", "fault"),
    [
        ({"name": "auto"}, "experts[0].name: is the name of the router; choose another"),
        ({"name": "a\nb"}, "experts[0].name: has no printable name; give at least one"),
        ({"name": ""}, "experts[0].name: has no printable name"),
        (
            {"name": "a//b"},
            "experts[0].name: has '.', '..' or an empty part between slashes; remove",
        ),
        ({"name": "/a"}, "experts[0].name: has '.', '..' or an empty part"),
        ({"name": ".."}, "experts[0].name: has '.', '..' or an empty part"),
        ({"name": "a" * 257}, "experts[0].name: has more than 256 characters; shorten it."),
        ({"name": 3}, "experts[0].name: is 3; give a text in quotes"),
        ({"source": ""}, "experts[0].source: is missing; give it, or target"),
        ({"source": "a\0b"}, "experts[0].source: has no printable name"),
        ({"source": "a" * 4097}, "a text of 4097 characters; give at most 4096."),
        (
            {"contxt": 3},
            "experts[0].contxt: is not known (did you mean context?); correct it or leave it out.",
        ),
        ({"a\nb": 3}, 'experts[0]."a\\nb": is not known; leave it out; known keys: name'),
        ({"context": 15}, "experts[0].context: is 15; give 16 or more."),
        ({"context": 2**20 + 1}, "experts[0].context: is 1048577; give 1048576 or less."),
        ({"context": 10**4000}, "experts[0].context: is 1000000000000000000000000000000000000..."),
        ({"context": True}, "experts[0].context: is true; give an integer."),
        (
            {"quantisation": "int3"},
            "quantisation: is \"int3\"; give 'none', 'auto', 'file', 'int8' or 'int4'.",
        ),
        ({"rows": 3}, "experts[0].rows: is 3; give an object; known keys: min, max."),
        ({"rows": {"min": 0}}, "experts[0].rows.min: is 0; give 1 or more."),
        ({"rows": {"max": 257}}, "experts[0].rows.max: is 257; give 256 or less."),
        ({"rows": {"min": 3, "max": 2}}, "experts[0].rows.max: 2 is below min, 3; give min or"),
        (
            {"rows": {"most": 3}},
            "experts[0].rows.most: is not known; leave it out; known keys: min, max.",
        ),
        ({"pinned": "yes"}, 'experts[0].pinned: is "yes"; give true or false.'),
        ({"load": "never"}, "experts[0].load: is \"never\"; give 'start' or 'demand'."),
        ({"examples": "one"}, 'experts[0].examples: is "one"; give a list.'),
        ({"examples": ["x", ""]}, "experts[0].examples[1]: is empty; give 1 character or more."),
        ({"examples": ["x" * 1001]}, "experts[0].examples[0]: has more than 1000 characters"),
        ({"examples": ["x"] * 257}, "experts[0].examples: has 257 entries; give 256 or fewer."),
        ({"description": "x" * 1001}, "experts[0].description: has more than 1000 characters"),
        ({"draft": {}}, "experts[0].draft.source: is missing; give it."),
        ({"draft": {"source": "b", "tokens": 33}}, "draft.tokens: is 33; give 32 or less."),
        (
            {"target": {"source": "b"}, "draft": {"source": "c"}},
            "experts[0].source: is given next to target; give only one of them.",
        ),
        ({"speculation": "draft"}, "experts[0].speculation: draft needs a draft model; give draft"),
        (
            {"speculation": "ngram", "draft": {"source": "b"}},
            "experts[0].speculation: ngram does not use the draft; give draft or auto, or remove",
        ),
    ],
)
def test_faults_of_an_member_name_key_value_and_bound(keys: dict[str, object], fault: str) -> None:
    [found] = faults_of(written(member(**keys)))
    assert fault in found


@pytest.mark.parametrize(
    ("keys", "fault"),
    [
        ({"version": 2}, "version: is 2; give 1."),
        ({"memory_limit": "6GB"}, "memory_limit: is not a size; give bytes, or a number of KiB"),
        ({"memory_limit": -1}, "memory_limit: is -1; give 1024 or more."),
        ({"memory_limit": True}, "memory_limit: is true; give an integer."),
        ({"fast_memory_limit": "2000TiB"}, "fast_memory_limit: is "),
        ({"patience_s": float("inf")}, "patience_s: is Infinity; give 3600 or less."),
        ({"patience_s": float("nan")}, "patience_s: is NaN; give "),
        ({"patience_s": -(10**400)}, "patience_s: is -Infinity; give 0 or more."),
        ({"load_timeout_s": "10"}, 'load_timeout_s: is "10"; give a number.'),
        ({"max_queue": 0}, "max_queue: is 0; give 1 or more."),
        ({"default": "b"}, 'default: no expert "b"; known: a.'),
        (
            {"load_by": "copy"},
            "load_by: is not known; leave it out; known keys: version, ",
        ),
        ({"router": {"fallback": "b"}}, 'router.fallback: no expert "b"; known: a.'),
        ({"router": {"threshold": 1.5}}, "router.threshold: is 1.5; give 1 or less."),
        ({"router": {"method": "guess"}}, "router.method: is \"guess\"; give 'tfidf'."),
        (
            {"router": True},
            "router: is true; give an object; known keys: method, threshold, fallback.",
        ),
        ({"Experts": []}, "Experts: is not known (did you mean experts?); correct it"),
    ],
)
def test_faults_of_the_bundle_name_key_value_and_bound(keys: dict[str, object], fault: str) -> None:
    [found] = faults_of(written(member(), **keys))
    assert found.startswith(fault)


def test_target_needs_a_draft_and_a_source() -> None:
    [fault] = faults_of(written({"name": "a", "target": {"source": "b"}}))
    assert fault.startswith("experts[0].draft: is missing next to target; give it, or replace")
    pair = {"name": "a", "target": {"sorce": "b"}, "draft": {"source": "c"}}
    assert faults_of(written(pair)) == [
        "experts[0].target.source: is missing; give it.",
        "experts[0].target.sorce: is not known (did you mean source?); correct it or leave it out.",
    ]


def test_all_faults_of_a_file_are_listed_at_once() -> None:
    members = [
        member(contxt=3),
        member(name="b", rows={"min": 0}),
        member(name="b"),
        member(name="a", speculation="draft"),
        "c",
    ]
    content = written(*members, default="d", version=2) + "max_queue: 1\nmax_queue: 2\n"
    text = "\n".join(faults_of(content))
    for fault in (
        "version: is 2",
        "experts[0].contxt: is not known",
        "experts[1].rows.min: is 0",
        "experts[3].speculation: draft needs a draft model",
        'experts[4]: is "c"; give an object; known keys: name',
        "'max_queue' appears twice; remove one.",
        'experts[2].name: "b" is also the name of experts[1]; give each its own name.',
        'experts[3].name: "a" is also the name of experts[0]',
        'default: no expert "d"; known: a, b, b, a.',
    ):
        assert fault in text


def test_number_of_members_is_bounded() -> None:
    names = [f"e{index}" for index in range(33)]
    assert len(parsed(*(member(name=name) for name in names[:32])).members) == 32
    assert faults_of(written(*(member(name=name) for name in names))) == [
        "experts: has 33 entries; give 32 or fewer."
    ]
    assert faults_of(written()) == ["experts: has no entries; give 1 or more."]


def test_list_of_faults_is_bounded() -> None:
    faults = faults_of(written(member(examples=[1] * 250)))
    assert len(faults) == 101
    assert faults[-1] == "And 150 more faults."


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        (b"\xff\xfe", "The file is not UTF-8 at byte 0; save it as UTF-8."),
        (b"", "the file is null; give an object; known keys: version, memory_limit"),
        (b"- 1", "the file is a list; give an object; known keys: version"),
        (b"text", 'the file is "text"; give an object'),
        (b"a: \0", "line 1: special characters are not allowed."),
        (b"#" * (MAX_FILE_BYTES + 1), "The file has more than 262144 bytes; shorten it."),
        (b"a: &x [1]\nb: *x", "line 1, column 4: anchors and aliases (& and *) are not allowed"),
    ],
)
def test_files_that_are_no_bundle_are_refused(content: bytes, fault: str) -> None:
    [found] = faults_of(content)
    assert fault in found


def test_member_names_that_no_utf_8_has_are_shown_all_the_same() -> None:
    content = written(default="x").replace("experts: []", 'experts: [{name: "\\ud800", source: b}]')
    name, default = faults_of(content)
    assert name == "experts[0].name: has half of a surrogate pair; give whole characters."
    assert default.encode() == b'default: no expert "x"; known: \\ud800.'


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=20)
    | st.sampled_from(["a", "b", "2GiB", "auto", "off", "draft"]),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(
                [key for model in (Bundle, BundleMember, RowBounds) for key in keys_at(model, ())]
                + ["tokens"]
            )
            | st.text(max_size=5),
            inner,
            max_size=4,
        )
    ),
    max_leaves=20,
)


def is_read_or_refused(content: bytes) -> bool:
    try:
        return bool(parse_bundle(content).members)
    except StartupError as error:
        return bool(error.faults)


@given(st.dictionaries(st.sampled_from(keys_at(Bundle, ())), VALUES), st.lists(VALUES))
def test_any_value_anywhere_is_read_or_refused(keys: dict[str, Any], members: list[Any]) -> None:
    raw = {**LIMITS, "experts": [member(), *members], **keys}
    assert is_read_or_refused(json.dumps(raw).encode())


@given(st.binary(max_size=200) | st.text(alphabet="ab:-[]{}&*!|>?#'\"%@ \n\t1.0", max_size=100))
def test_any_bytes_are_read_or_refused(content: bytes | str) -> None:
    assert is_read_or_refused(content if isinstance(content, bytes) else content.encode())


@pytest.mark.parametrize("name", ["", "absent.yaml", "\0"])
def test_path_of_no_file_is_a_fault_with_a_remedy(tmp_path: Path, name: str) -> None:
    with pytest.raises(StartupError, match=r"is not a file; give the path|cannot be read"):
        read_bundle(tmp_path / name)


def test_rows_of_all_members_are_bounded_together() -> None:
    bundle = parsed(member(rows={"min": 20}), member(name="b", rows={"min": 13, "max": 33}))
    assert bundle.row_faults(33) == []
    assert bundle.row_faults(32) == [
        "rows.min: need 33 rows, limit USER_ROWS=32, over by 1; lower rows.min or raise USER_ROWS.",
        "experts[1].rows.max: 33 is above USER_ROWS=32; lower it or raise USER_ROWS.",
    ]


@pytest.mark.parametrize(
    ("model", "prefix"),
    [
        (Bundle, ""),
        (BundleMember, ""),
        (RowBounds, "rows."),
        (MemberDraft, "draft."),
        (RouterSettings, "router."),
    ],
)
def test_every_key_is_documented(model: type[BaseModel], prefix: str) -> None:
    section = DOCUMENT.read_text().split("\n## ")[1]
    rows = [line for line in section.splitlines() if line.startswith("| `")]
    documented = {line.split("`")[1]: line for line in rows}
    for name, field in model.model_fields.items():
        line = documented[prefix + (field.alias or name)]
        default: Any = field.default
        if type(default) in (int, float):
            assert line.split("|")[2].strip() == f"{default:g}"
