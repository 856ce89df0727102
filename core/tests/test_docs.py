"""Pages written from the code are up to date, and links between pages lead somewhere."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PAGES = sorted([*DOCS.rglob("*.md"), *ROOT.glob("*.md"), *ROOT.glob("backends/*/README.md")])


def generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("docs_generate", DOCS / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_reference_pages_are_what_the_code_says() -> None:
    written = {path.name: path.read_text("utf-8") for path in (DOCS / "reference").glob("*.md")}
    made = generator().pages()
    by_hand = {"glossary.md", "report.md", "stability.md"}
    assert written.keys() - made.keys() == by_hand
    assert written.keys() >= made.keys()
    for name, text in made.items():
        assert written[name] == text, f"{name} is stale: run python docs/generate.py"


def test_the_page_of_the_seam_is_refused_without_a_row_for_each_field(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    module = generator()
    # The table itself is that of every generator in this process.
    rows = {name: row for name, row in module.CHECKED.items() if name != "Limits.rank"}
    monkeypatch.setattr(module, "CHECKED", rows)
    with pytest.raises(AssertionError, match=r"Limits\.rank"):
        module.seam_page()
    rows["Limits.rank"] = ("looks at it; `limits.nonesuch`", "")
    with pytest.raises(AssertionError, match=r"limits\.nonesuch"):
        module.seam_page()


def test_cells_hold_no_bare_markup() -> None:
    module = generator()
    [head, rule, row] = module.table(("a", "b", "c"), [("|x|", "", "x * y < z")])
    assert head == "| a | c |"
    assert rule == "|---|---|"
    assert row == r"| \|x\| | x \* y &lt; z |"
    assert module.escaped("`a * b | c` * `d`") == r"`a * b \| c` \* `d`"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_lead_somewhere(page: Path) -> None:
    text = re.sub(r"^```.*?^```$", "", page.read_text("utf-8"), flags=re.MULTILINE | re.DOTALL)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if target.startswith("https://"):
            continue
        path, _, anchor = target.partition("#")
        linked = (page.parent / path).resolve() if path else page
        assert linked.exists(), target
        if anchor:
            headings = re.findall(r"^#+ (.*)$", linked.read_text("utf-8"), re.MULTILINE)
            # As GitHub and the site make anchors of headings.
            anchors = {re.sub(r"[^\w\- ]", "", h.lower()).replace(" ", "-") for h in headings}
            assert anchor in anchors, target


def test_the_index_leads_to_every_page() -> None:
    index = (DOCS / "README.md").read_text("utf-8")
    pages = [path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md")]
    assert [page for page in pages if page != "README.md" and f"({page})" not in index] == []
