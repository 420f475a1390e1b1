"""The wheel of cpb holds, beside its packages, two files that its source has elsewhere or makes.

The light library's wheel travels with every published model, and `cpb deploy` reads `prefect.yaml`. An editable
install takes neither: it runs in the clone, which has both.
"""

import shutil
import sys
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

from tasks.storage.wheel import build_light_wheel  # noqa: E402 - needs nothing but setuptools


class _WithFiles(build_py):
    """Builds the packages and puts the two files beside the modules that read them."""

    def run(self) -> None:
        super().run()
        if not self.editable_mode:
            built = Path(self.build_lib)
            wheel = build_light_wheel(HERE / "cpbmodels")
            (built / "tasks/storage" / wheel.name).write_bytes(wheel.data)
            shutil.copyfile(HERE / "prefect.yaml", built / "flows/deploy/prefect.yaml")


setup(cmdclass={"build_py": _WithFiles})
