"""cpb is installed from its clone; a wheel would put packages called `tasks` and `flows` into site-packages."""

from setuptools import setup
from setuptools.command.bdist_wheel import bdist_wheel


class _NoWheel(bdist_wheel):
    """Says no. An editable install (`pip install -e .`, `make install`) does not run this command."""

    def run(self) -> None:
        raise SystemExit(
            "cpb has no wheel: it would install packages called tasks and flows. Clone it and run `make install`; for "
            "the models alone, `pip install ./cpbmodels`."
        )


setup(cmdclass={"bdist_wheel": _NoWheel})
