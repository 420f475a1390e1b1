"""What mkdocs is told besides `mkdocs.yml`: pages that lie outside `docs/`, and links to the code.

Pages are written for GitHub, where a link names a file. A link that leaves `docs/` becomes one to the page that shows
that file here (`OUTSIDE`), or to the file in the repository.
"""

import logging
import os
import re
from pathlib import Path, PurePosixPath
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[2]
OUTSIDE = {
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "benchmarks/RESULTS.md": "measurements.md",
    "README.md": "index.md",
}
"""File of the repository -> the page of the site that stands for it."""

_log = logging.getLogger("mkdocs.plugins.cpb")
_FENCE = re.compile(r"^(```.*?^```)", re.DOTALL | re.MULTILINE)
_LINK = re.compile(r"\]\(([^)\s]+)\)")


def on_files(files: Files, config: Any, **_: Any) -> Files:
    """Add the repository's files that are pages of the site, too."""
    for source, page in OUTSIDE.items():
        if files.get_file_from_path(page) is None:
            files.append(File.generated(config, page, content=(ROOT / source).read_text()))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, **_: Any) -> str:
    """Turn links that leave `docs/` into ones that work here."""
    shown = page.file.src_uri
    own = next((source for source, name in OUTSIDE.items() if name == shown and source != "README.md"), None)
    base = PurePosixPath(own or f"docs/{shown}").parent
    parts = _FENCE.split(markdown)  # every other part is a fenced block
    return "".join(
        part if i % 2 else _LINK.sub(lambda m: f"]({_target(m[1], base, shown, config)})", part)
        for i, part in enumerate(parts)
    )


def _target(link: str, base: PurePosixPath, shown: str, config: Any) -> str:
    path, mark, anchor = link.partition("#")
    if not path or "://" in path or path.startswith("mailto:"):
        return link
    file = os.path.normpath(base / path)
    here = str(PurePosixPath(shown).parent)
    if file in OUTSIDE:
        return os.path.relpath(OUTSIDE[file], here) + mark + anchor
    if not (ROOT / file).exists():
        _log.warning("%s: the link %s leads nowhere", shown, link)
    inside = file.removeprefix("docs/")
    if inside != file and not inside.startswith(("examples/", "colab")):
        return os.path.relpath(inside, here) + mark + anchor
    return f"{config.extra['repository']}/blob/main/{file}{mark}{anchor}"
