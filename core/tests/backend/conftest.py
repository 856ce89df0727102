"""Makes the helper modules in this folder importable; the folder of a package that is tested as the
wheel it was built into is no folder of tests.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent))
collect_ignore = ["level1"]
