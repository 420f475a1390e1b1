"""A sealed folder: each of its files is the one that was written, or damage, or not finished."""

import os
import shutil

import numpy as np
import pytest

from schemas.errors import DamagedError
from tasks.storage.arrays import read_npz, write_npz
from tasks.storage.sealed import SEAL, check_sealed, read_sealed, resealing, seal, sealed_fault, sealed_files

ARRAYS = {"origins": np.arange(9), "quantiles": np.linspace(0, 1, 12, dtype=np.float32).reshape(2, 3, 2)}
PICTURE = "model/loss.png"


@pytest.fixture
def path(tmp_path):
    file = tmp_path / "KEY/members/BTCUSDT-1h/test.npz"
    write_npz(file, ARRAYS)
    (file.parent / PICTURE).parent.mkdir()
    (file.parent / PICTURE).write_bytes(bytes(range(200)))
    seal(file.parent)
    return file


def test_arrays_come_back_as_they_were(path):
    arrays = read_npz(path)
    assert arrays.keys() == ARRAYS.keys()
    assert all(np.array_equal(arrays[k], v) and arrays[k].dtype == v.dtype for k, v in ARRAYS.items())
    assert np.load(path)["origins"].tolist() == list(range(9))
    assert sealed_files(path.parent).keys() == {"test.npz", PICTURE}


@pytest.mark.parametrize("name", [PICTURE, "test.npz", SEAL])
def test_no_flipped_bit_goes_unnoticed(path, name):
    folder, file = path.parent, path.parent / name
    whole = file.read_bytes()
    assert read_sealed(folder, PICTURE) == bytes(range(200))
    for at in range(0, len(whole) - 1, 7 if name == "test.npz" else 1):
        content = bytearray(whole)
        content[at] ^= 1 << at % 8
        file.write_bytes(content)
        with pytest.raises(DamagedError) as refused:
            read_sealed(folder, PICTURE if name == SEAL else name)
        assert refused.value.field == str(file)
        with pytest.raises(DamagedError):
            check_sealed(folder)
    if name == PICTURE:
        check_sealed(folder, "test.npz")  # another file's damage


@pytest.mark.parametrize("length", [0, 7, 32, 100, -1])
def test_a_truncated_file_is_damage(path, length):
    path.write_bytes(path.read_bytes()[:length])
    with pytest.raises(DamagedError):
        read_npz(path)


def test_a_missing_file_and_another_members_file(path):
    with pytest.raises(FileNotFoundError):
        read_npz(path.with_name("none.npz"))
    other = path.parents[1] / "ETHUSDT-1h/test.npz"
    write_npz(other, {"origins": np.arange(3)})
    with pytest.raises(FileNotFoundError):  # without a seal
        read_npz(other)
    seal(other.parent)
    shutil.copy(path, other)
    with pytest.raises(DamagedError):
        read_npz(other)
    other.unlink()
    with pytest.raises(DamagedError, match="missing"):
        check_sealed(other.parent)


def test_what_was_damaged_before_a_folder_is_sealed_again_stays_damaged(path):
    (path.parent / PICTURE).write_bytes(b"damaged")
    with resealing(path.parent, path.name, "score.npz"):
        path.unlink()
        write_npz(path.with_name("score.npz"), ARRAYS)
    assert sealed_files(path.parent).keys() == {PICTURE, "score.npz"}
    assert read_npz(path.with_name("score.npz")).keys() == ARRAYS.keys()
    with pytest.raises(DamagedError, match=PICTURE):
        check_sealed(path.parent)


def test_a_writer_that_is_killed_leaves_its_files_unfinished_and_the_others_whole(path):
    pid = os.fork()
    if not pid:
        with resealing(path.parent, path.name, "new"):
            path.write_bytes(b"half")
            (path.parent / "new").touch()
            os._exit(9)
    os.waitpid(pid, 0)
    check_sealed(path.parent)
    assert read_sealed(path.parent, PICTURE) == bytes(range(200))
    for name in (path.name, "new"):
        with pytest.raises(FileNotFoundError):
            read_sealed(path.parent, name)


def test_a_file_that_a_writer_has_begun_meanwhile_is_no_damage(path):
    """`cpb verify` and a trainer compare a file with a list that they read a moment ago."""
    before = sealed_files(path.parent)[path.name]
    with resealing(path.parent, path.name):
        write_npz(path, {"origins": np.arange(3)})
        assert sealed_fault(path.parent, path.name, before) == ""
    assert sealed_fault(path.parent, path.name, before) == ""
    path.write_bytes(b"damaged")
    assert sealed_fault(path.parent, path.name, sealed_files(path.parent)[path.name])
