"""The digest of code follows imports: no file that decides a result can be forgotten."""

import gc
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from tasks.storage import source_code


@pytest.fixture
def project(tmp_path, monkeypatch):
    monkeypatch.setattr(source_code, "ROOT", tmp_path)
    monkeypatch.setattr(source_code, "PACKAGES", {"a", "b"})
    for name, text in {
        "a/__init__.py": "",
        "a/one.py": "from b.two import X\nimport json",
        "b/__init__.py": "",
        "b/two.py": "def f():\n    from a import three\nX = 1",
        "a/three.py": "import a.one",
        "a/other.py": "",
    }.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    source_code._code_digest.cache_clear()
    yield tmp_path
    source_code._code_digest.cache_clear()


@pytest.mark.parametrize("changed", ["a/one.py", "b/two.py", "a/three.py"])
def test_a_change_of_any_imported_module_is_another_digest(project, changed):
    before = source_code.code_digest("a/one.py")
    source_code._code_digest.cache_clear()
    assert source_code.code_digest("a/one.py") == before
    (project / changed).write_text((project / changed).read_text() + "\nchanged = True")
    source_code._code_digest.cache_clear()
    assert source_code.code_digest("a/one.py") != before


def test_comments_docstrings_and_layout_do_not_count(project):
    two, texts = project / "b/two.py", []
    for text in (
        "X = 1\ndef f(a, b):\n    return a",
        '"""A module."""\nX = 1\n"""A constant."""\n\ndef f(\n  a, b\n):\n  """A function."""\n  # why\n  return a',
        "X = 2\ndef f(a, b):\n    return a",
    ):
        two.write_text(text)
        source_code._code_digest.cache_clear()
        texts.append(source_code.code_digest("a/one.py"))
    assert texts[0] == texts[1] != texts[2]


def test_neither_what_is_left_out_counts_nor_what_it_imports(project):
    before = source_code.code_digest("a/one.py", without=("b",))
    for name in ("b/two.py", "a/three.py"):
        (project / name).write_text("Z = 1")
    source_code._code_digest.cache_clear()
    assert source_code.code_digest("a/one.py", without=("b",)) == before


def test_a_place_that_is_gone_is_an_error(project):
    with pytest.raises(FileNotFoundError):
        source_code.code_digest("a/gone.py")


@pytest.fixture
def thread_switches_in_the_collector():
    """What a library that watches garbage collection does: Python code runs in the middle of `ast.parse`."""

    def switch(*_):
        time.sleep(0)

    threshold = gc.get_threshold()
    gc.callbacks.append(switch)
    gc.set_threshold(50)
    yield
    gc.callbacks.remove(switch)
    gc.set_threshold(*threshold)


@pytest.mark.usefixtures("thread_switches_in_the_collector")
def test_many_threads_may_ask_at_once():
    """Without a lock 15 of 40 ended in a SystemError of `ast.parse` (3.11); the features of a run are threads."""

    def ask():
        source_code._code_digest.cache_clear()
        return source_code.code_digest("cpbmodels/data/columns.py", "cpbmodels/arch")

    with ThreadPoolExecutor(8) as pool:
        assert len({future.result() for future in [pool.submit(ask) for _ in range(10)]}) == 1
