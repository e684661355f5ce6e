"""A trace of requests: what is read, what is refused, and the peaks that a plan is made for."""

import json
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st

from optimizer.errors import InvalidRequest
from optimizer.plan import main
from optimizer.questions import trace as traces
from optimizer.questions.trace import Trace, read_trace

HEAD = "arrival_s,input_tokens,output_tokens\n"
OPTIONS = ["--model", "qwen3-8b", "--accelerator", "h100", "--accelerator", "l40s", "--itl", "60"]


def read(folder: Path, text: str, window_s: float = 1.0) -> Trace:
    path = folder / "trace.csv"
    path.write_text(text, encoding="utf-8")
    return read_trace(path, window_s)


def test_columns_are_found_by_name_in_any_order(tmp_path: Path) -> None:
    text = "user,Output_Tokens,input_tokens,arrival_s\nb,20,10,7.5\n\na,2,1,5\nc,0,3,1e1\n"
    found = read(tmp_path, text)
    assert found.arrival_s.tolist() == [0, 2.5, 5]
    assert found.input_tokens.tolist() == [1, 10, 3]
    assert found.output_tokens.tolist() == [2, 20, 0]


def test_published_traces_are_read_as_they_are(tmp_path: Path) -> None:
    azure = "TIMESTAMP,ContextTokens,GeneratedTokens\n"
    azure += "2023-11-16 18:17:03.9799600,4808,10\n2023-11-16 18:17:05.0319600,110,27\n"
    found = read(tmp_path, azure)
    assert found.arrival_s[-1] == pytest.approx(1.052)
    zones = HEAD + "2026-03-29T01:30:00+01:00,1,1\n2026-03-29T03:30:00+02:00,1,1\n"
    assert read(tmp_path, zones).arrival_s[-1] == 3600
    burst = "\ufeffTimestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
    burst += "5,ChatGPT,472,18,490,Conversation log\n45,ChatGPT,1087,230,1317,Conversation log\n"
    assert read(tmp_path, burst).arrival_s[-1] == 40


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "line 1: no column arrival_s; name the columns there"),
        ("arrival_s,tokens\n1,2\n", "no column input_tokens"),
        (HEAD, "0 rows; give 2 to 1000000"),
        (HEAD + "1,2,3\n", "1 rows; give 2"),
        (HEAD + "1,2,3\n1.5,2,3\n", "it lasts 0.5 s; give --peak at most that"),
        (HEAD + "1,2,3\n2,2\n", "line 3: output_tokens is ''; give a whole number from 0 to 10"),
        (HEAD + "1,-2,3\n", "line 2: input_tokens is '-2'; give a whole number"),
        (HEAD + "1,2.5,3\n", "line 2: input_tokens is '2.5'; give a whole number"),
        (HEAD + "1,2,99999999\n", "line 2: output_tokens is '99999999'; give a whole number"),
        (HEAD + "nan,2,3\n", "line 2: arrival_s is 'nan'; give seconds from -1e"),
        (HEAD + "1e300,2,3\n", "line 2: arrival_s is '1e300'; give seconds"),
        (HEAD + "noon,2,3\n", "line 2: arrival_s is 'noon'; give seconds from -1e.10 to 1e"),
        (HEAD + '1,2,"' + "x" * 200_000, "larger than field limit .*; save it as CSV in UTF-8"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_told_with_its_bound(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        read(tmp_path, text)


def test_no_more_is_read_than_the_bounds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(traces, "MOST_ROWS", 3)
    with pytest.raises(InvalidRequest, match="more than 3 rows; give a part of it"):
        read(tmp_path, HEAD + "1,2,3\n" * 4)
    monkeypatch.setattr(traces, "MOST_BYTES", 40)
    with pytest.raises(InvalidRequest, match="more than 40 bytes; shorten it"):
        read(tmp_path, HEAD + "1,2,3\n" * 2)
    (tmp_path / "trace.csv").write_bytes(b"\xff\xfe")
    with pytest.raises(InvalidRequest, match="save it as CSV in UTF-8"):
        read_trace(tmp_path / "trace.csv", 1)


CELLS = st.text(max_size=8) | st.sampled_from(
    ["1", "-1", "nan", "inf", "1e400", "1_0", "9" * 5000, "2026-01-02", "9999-12-31T23:59-23:59",
     "0001-01-01T00:00+23:59", '"', "\0", "\r"]
)  # fmt: skip


@given(st.lists(st.lists(CELLS, max_size=4).map(",".join), max_size=6), st.booleans())
def test_whatever_a_trace_holds_is_read_or_refused(lines: list[str], has_header: bool) -> None:
    with TemporaryDirectory() as place:
        path = Path(place) / "trace.csv"
        text = HEAD * has_header + "\n".join(lines)
        path.write_bytes(text.encode(errors="surrogatepass"))
        words = ""
        try:
            found = read_trace(path, 1.0)
        except InvalidRequest as error:
            words = str(error)
        else:
            assert found.arrival_s[0] == 0
            assert (np.diff(found.arrival_s) >= 0).all()
            for peak in found.peaks(1.0):
                json.dumps(peak, allow_nan=False)
        assert len(words) < 1000


@given(
    gaps=st.lists(st.integers(0, 40), min_size=3, max_size=30),
    tokens=st.lists(st.tuples(st.integers(0, 99), st.integers(0, 99)), min_size=30, max_size=30),
)
def test_no_window_has_more_than_the_peaks(gaps: list[int], tokens: list[tuple[int, int]]) -> None:
    arrival = np.cumsum([0, *gaps]).astype(float)[: len(gaps)]
    table = np.array(tokens[: len(gaps)], dtype=float)
    found = Trace(arrival, table[:, 0], table[:, 1])
    peaks = {name: peak for peak in found.peaks(10) for name in peak["of"]}
    assert peaks.keys() == {"requests", "prompt tokens", "answer tokens"}
    for start in range(int(arrival[-1]) + 1):
        inside = (arrival >= start) & (arrival < start + 10)
        assert inside.sum() <= peaks["requests"]["requests"]
        for name, column in (("prompt tokens", 0), ("answer tokens", 1)):
            peak = peaks[name]
            mean = (peak["avgInTokens"], peak["avgOutTokens"])[column]
            assert table[inside, column].sum() <= mean * peak["requests"] + 1e-6


def planned(folder: Path, text: str, *more: str) -> Result:
    (folder / "trace.csv").write_text(text)
    return CliRunner().invoke(main, [*OPTIONS, "--trace", str(folder / "trace.csv"), *more])


def two_peaks() -> str:
    """Many short requests in the first minute, and fewer long ones in the third."""
    short = [f"{number / 50},200,50" for number in range(3000)]
    long_ = [f"{120 + number / 10},4000,400" for number in range(600)]
    return HEAD + "\n".join([*short, *long_, "200,1,1"]) + "\n"


def test_a_plan_holds_at_every_peak(tmp_path: Path) -> None:
    answer = json.loads(planned(tmp_path, two_peaks(), "--json").stdout)
    assert [peak["of"] for peak in answer["peaks"]] == [
        ["requests"], ["prompt tokens", "answer tokens"],
    ]  # fmt: skip
    assert [round(peak["arrivalRate"]) for peak in answer["peaks"]] == [3000, 600]
    needed = {each["accelerator"]: each["numReplicas"] for each in answer["choices"]}
    for rate, prompt, output in ((50, 200, 50), (10, 4000, 400)):
        options = [
            "--rate",
            str(rate),
            "--input-tokens",
            str(prompt),
            "--output-tokens",
            str(output),
        ]
        alone = json.loads(CliRunner().invoke(main, [*OPTIONS, *options, "--json"]).stdout)
        for choice in alone["choices"]:
            assert needed.get(choice["accelerator"], 1e9) >= choice["numReplicas"]


def test_the_peaks_are_told_before_the_answer(tmp_path: Path) -> None:
    printed = planned(tmp_path, two_peaks()).stdout.splitlines()
    assert printed[0] == "3601 requests in 200 s; the peaks of 60 s:"
    assert printed[1:3] == [
        "  most requests: from 0 s, 50 requests/s of 200 + 50 tokens",
        "  most prompt tokens, answer tokens: from 120 s, 10 requests/s of 4000 + 400 tokens",
    ]


def test_peaks_that_nothing_serves_are_no_plan(tmp_path: Path) -> None:
    result = planned(tmp_path, two_peaks(), "--ttft", "0.001")
    assert result.exit_code == 1
    assert "Nothing in the catalogue meets these levels." in result.stdout


@pytest.mark.parametrize("more", [[], ["--rate", "1", "--trace", __file__]])
def test_either_a_rate_or_a_trace_is_asked_for(more: list[str]) -> None:
    result = CliRunner().invoke(main, [*OPTIONS, *more])
    assert (result.exit_code, "Give either --rate or --trace." in result.output) == (2, True)
