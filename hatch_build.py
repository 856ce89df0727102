"""The README as a package page shows it: addresses in place of paths of the repository."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

SOURCE = "https://github.com/bringup/bringup/blob/main/"


def absolute(text: str) -> str:
    """A page of Markdown whose links lead somewhere wherever it is shown."""
    return re.sub(r"\]\((?!https?://|#)([^)\s]+)\)", rf"]({SOURCE}\1)", text)


class Readme(MetadataHookInterface):
    """Fills in the field ``readme`` of the metadata."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Set the text."""
        text = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        metadata["readme"] = {"content-type": "text/markdown", "text": absolute(text)}
