"""Arrays and pictures of a fleet's member: they are those that were written there, or damage."""

import shutil

import numpy as np
import pytest

from schemas.errors import DamagedError
from tasks.storage.records import read_npz, read_sealed, write_npz, write_sealed

ARRAYS = {"origins": np.arange(9), "quantiles": np.linspace(0, 1, 12, dtype=np.float32).reshape(2, 3, 2)}


@pytest.fixture
def path(tmp_path):
    file = tmp_path / "KEY/members/BTCUSDT-1h/test.npz"
    write_npz(file, ARRAYS)
    return file


def test_arrays_come_back_as_they_were(path):
    arrays = read_npz(path)
    assert arrays.keys() == ARRAYS.keys()
    assert all(np.array_equal(arrays[k], v) and arrays[k].dtype == v.dtype for k, v in ARRAYS.items())
    assert np.load(path)["origins"].tolist() == list(range(9))  # numpy alone ignores the digest


def test_no_flipped_bit_goes_unnoticed(tmp_path):
    path = tmp_path / "KEY/members/BTCUSDT-1h/model/loss.png"
    write_sealed(path, bytes(range(200)))
    whole = path.read_bytes()
    assert read_sealed(path) == bytes(range(200))
    for at in range(len(whole)):
        content = bytearray(whole)
        content[at] ^= 1 << at % 8
        path.write_bytes(content)
        with pytest.raises(DamagedError) as refused:
            read_sealed(path)
        assert refused.value.field == str(path)


@pytest.mark.parametrize("length", [0, 7, 32, 100, -1])
def test_a_truncated_file_is_damage(path, length):
    path.write_bytes(path.read_bytes()[:length])
    with pytest.raises(DamagedError):
        read_npz(path)


def test_a_missing_file_and_another_members_file(path):
    with pytest.raises(FileNotFoundError):
        read_npz(path.with_name("none.npz"))
    other = path.parents[1] / "ETHUSDT-1h/test.npz"
    other.parent.mkdir()
    shutil.copy(path, other)
    with pytest.raises(DamagedError):
        read_npz(other)
