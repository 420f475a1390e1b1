"""Arrays in an npz file: whatever happens to the file, its arrays are those that were written, or there are none."""

import numpy as np
import pytest

from schemas.errors import DamagedError
from tasks.storage.records import read_npz, write_npz

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


@pytest.mark.parametrize("bit", range(8))
def test_no_flipped_bit_changes_an_array(path, bit):
    whole = path.read_bytes()
    noticed = 0
    with path.open("r+b", buffering=0) as file:  # in place: a file written anew goes to the disk each time
        for at in range(len(whole)):
            content = bytearray(whole)
            content[at] ^= 1 << bit
            file.seek(0)
            file.write(content)
            try:
                arrays = read_npz(path)
            except DamagedError:
                noticed += 1
                continue
            assert arrays.keys() == ARRAYS.keys()
            assert all(np.array_equal(arrays[k], v) for k, v in ARRAYS.items())
    assert noticed > len(whole) / 2  # the rest are dates and attributes


@pytest.mark.parametrize("content", [b"", b"PK", bytes(500)])
def test_what_is_no_npz_file_is_damage(path, content):
    path.write_bytes(content)
    with pytest.raises(DamagedError) as refused:
        read_npz(path)
    assert refused.value.field == str(path)


def test_a_missing_file_and_pickled_objects(tmp_path):
    with pytest.raises(FileNotFoundError):
        read_npz(tmp_path / "none.npz")
    np.savez(tmp_path / "b.npz", a=np.array([{}], dtype=object))
    with pytest.raises(DamagedError):
        read_npz(tmp_path / "b.npz")
