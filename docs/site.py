"""The hook by which mkdocs makes a site of these pages: see mkdocs.yml.

Pages of the repository outside of this folder are part of the site as ``about/``; links to any
other file lead to the repository.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

_ROOT = Path(__file__).parents[1]
#: Pages from outside, by their places in the site.
_OUTSIDE = {
    "about/changes.md": "CHANGELOG.md",
    "about/design.md": "DESIGN.md",
    "about/contributing.md": "CONTRIBUTING.md",
    "about/template.md": "backends/template/README.md",
    "about/c.md": "backends/c/README.md",
}
_PLACES = {path: place for place, path in _OUTSIDE.items()}
_LINK = re.compile(r"(?<=\]\()(?![a-z]+:|#)([^)\s#]+)(#[^)\s]*)?(?=\))")


def on_files(files: Any, config: Any) -> Any:
    """Add the pages from outside."""
    for place, path in _OUTSIDE.items():
        text = (_ROOT / path).read_text(encoding="utf-8")
        files.append(File.generated(config, place, content=text))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, **_: Any) -> str:
    """Links by where their targets stand in the site, or in the repository."""
    own = page.file.src_uri
    source = _OUTSIDE.get(own, f"docs/{own}")

    def placed(match: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(posixpath.dirname(source), match[1]))
        anchor = match[2] or ""
        inside = _PLACES.get(target) or (target[5:] if target.startswith("docs/") else None)
        if inside is not None and (inside in _OUTSIDE or inside.endswith(".md")):
            return posixpath.relpath(inside, posixpath.dirname(own) or ".") + anchor
        kind = "tree" if (_ROOT / target).is_dir() else "blob"
        if not (_ROOT / target).exists():
            return match[0]  # mkdocs tells where it is wrong
        return f"{config.repo_url}/{kind}/main/{target}{anchor}"

    return _LINK.sub(placed, markdown)
