"""No circle of imports among the product's files, those inside functions and for types alone included.

The contracts of import-linter (`pyproject.toml`) order packages; this finds circles of files within a package too.
"""

import tomllib
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import grimp

from benchmarks.size import PRODUCT


def circle(graph):
    """Return the modules of a circle of imports, the first again at its end; an empty list if there is none."""
    imported = {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}
    try:
        TopologicalSorter(imported).prepare()
    except CycleError as error:
        return error.args[1]
    return []


def test_no_file_imports_itself_through_others():
    graph = grimp.build_graph(*PRODUCT, exclude_type_checking_imports=False, cache_dir=None)
    assert {"flows.train_all", "tasks.training.local", "cpbmodels.data.series"} <= graph.modules
    assert circle(graph) == []


def test_the_contracts_count_imports_for_types_too():
    options = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["tool"][
        "importlinter"
    ]
    assert not options.get("exclude_type_checking_imports", False)
    graph = grimp.build_graph("cpbmodels", exclude_type_checking_imports=False, cache_dir=None)
    assert "cpbmodels.fleet.member" in graph.find_modules_directly_imported_by("cpbmodels.hub")  # for types
