"""Records on disk: what is read is what was written, or it is named."""

import ast
import json
import math
import re
from contextlib import suppress

import pytest

from schemas.errors import DamagedError
from schemas.failure import Failure
from schemas.handover import SeriesRecord, ShardResult, TrainedMember
from schemas.identity import ModelId, SeriesId
from tasks.storage import source_code
from tasks.storage.records import find_record, parse_record, read_record, value_digest, write_record

MODEL = ModelId("har", "default", SeriesId("um", "BTCUSDT", "1h"), 7)
RESULT = ShardResult(
    key="k",
    architecture="har",
    members=(
        TrainedMember(
            model=MODEL,
            name="um-BTCUSDT-1h",
            history=({"val_loss": 1.25, "lr": math.nan},),
            report={"epochs_run": 3},
        ),
    ),
    failures=(Failure.of(MODEL, "train", "why"),),
    train_seconds=0.1 + 0.2,
)


def test_a_record_comes_back_as_it_was(tmp_path):
    digest = write_record(tmp_path / "r.json", RESULT)
    record = read_record(tmp_path / "r.json", ShardResult)
    assert write_record(tmp_path / "s.json", record) == digest
    assert record.members[0].model == MODEL
    assert record.train_seconds == 0.1 + 0.2


def test_every_changed_byte_of_the_content_is_found(tmp_path):
    path = tmp_path / "r.json"
    write_record(path, RESULT)
    whole = path.read_bytes()
    unnoticed: list[str] = []
    for i in range(0, len(whole), 7):
        changed = bytearray(whole)
        changed[i] ^= 1
        path.write_bytes(changed)
        with suppress(DamagedError):  # not found where it is white space outside the content
            assert read_record(path, ShardResult).model_dump_json() == RESULT.model_dump_json()
            unnoticed.append(chr(whole[i]))
    assert set(unnoticed) <= {" ", "\n"}


def test_another_kind_or_version_is_not_read(tmp_path):
    path = tmp_path / "r.json"
    write_record(path, Failure.of(MODEL, "train", "x"))
    with pytest.raises(DamagedError, match="no ShardResult"):
        read_record(path, ShardResult)
    write_record(path, RESULT)
    values = json.loads(path.read_text())
    path.write_text(json.dumps(head(ShardResult, 99, values["body"])))
    with pytest.raises(DamagedError, match="99"):
        read_record(path, ShardResult)


@pytest.mark.parametrize("change", [{"of": "ETHUSDT-1h"}, {"version": 9}])
def test_kind_version_and_any_other_field_belong_to_the_digested_content(tmp_path, change):
    path = tmp_path / "r.json"
    write_record(path, RESULT)
    path.write_text(json.dumps(json.loads(path.read_text()) | change, indent=2))
    with pytest.raises(DamagedError, match="as cpb writes it"):
        read_record(path, ShardResult)


def test_a_record_of_before_which_names_its_subject_is_read(tmp_path):
    """As in published model folders, which are kept forever."""
    path = tmp_path / "r.json"
    content = {"record": "ShardResult", "version": ShardResult.version, "of": "k/BTCUSDT-1h/r.json"}
    content["body"] = RESULT.model_dump(mode="json")
    path.write_text(json.dumps(content | {"digest": value_digest(content)}))
    assert read_record(path, ShardResult).model_dump_json() == RESULT.model_dump_json()


class Renewed(SeriesRecord):
    """A record whose fields were changed once."""

    version = 2


def head(kind, version, body, **changes):
    content = {"record": kind.__name__, "version": version, "body": body}
    return content | {"digest": value_digest(content)} | changes


WHOLE = {"key": "k", "architecture": "har"}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "null",
        "{}",
        "\x00\xff",
        '{"rows": 1}',
        json.dumps(head(Renewed, 1, {}, digest="0")),
        json.dumps(head(Renewed, 0, {})),
        json.dumps(head(Renewed, 3, {})),
        json.dumps(head(Renewed, True, {})),
        json.dumps(head(Renewed, 2, {})),
        json.dumps(head(ShardResult, 1, WHOLE)),
        json.dumps(head(ShardResult, 1, WHOLE | {"unknown": 1})),
    ],
)
def test_damage_of_the_present_version_has_a_reason_in_words(tmp_path, text):
    path = tmp_path / "r.json"
    path.write_text(text)
    kind = ShardResult if "unknown" in text else Renewed
    with pytest.raises(DamagedError) as caught:
        parse_record(path, kind)
    assert caught.value.code == "damaged"
    assert not re.search(r"Error|Exception|[(<']", str(caught.value))


def test_a_damaged_one_is_named_and_a_missing_one_is_none(tmp_path, caplog):
    path = tmp_path / "r.json"
    assert find_record(path, ShardResult) is None
    path.write_text("{")
    assert find_record(path, ShardResult) is None
    assert "r.json is damaged: it is no ShardResult as cpb writes it" in caplog.text


def test_a_source_is_parsed_while_other_threads_parse(monkeypatch):
    """CPython 3.11 then raises SystemError at times, which the page answered with a failure."""
    parse, turns = ast.parse, iter([True, True, False])

    def disturbed(source):
        if next(turns):
            raise SystemError("AST constructor recursion depth mismatch (before=63, after=67)")
        return parse(source)

    monkeypatch.setattr(ast, "parse", disturbed)
    assert source_code._tree(b"x = 1").body
