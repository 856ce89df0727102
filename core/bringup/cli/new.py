"""``bringup new``: the package of a backend, made of the texts in the folder ``scaffold``.

A package is a few layers of that folder, one above the other.  The files of a layer are texts with
variables, and stand where they stand in the package, whose module is the folder ``package``; its
``fragments.toml`` has values of variables.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Collection, Sequence
from datetime import date
from importlib.util import find_spec
from pathlib import Path
from string import Template

from bringup.backend.capabilities import API_LEVEL, OPSET
from bringup.backend.discovery import candidates
from bringup.cli.output import line, table
from bringup.cli.shell import did_you_mean
from bringup.errors import BringupError
from bringup.records import record
from bringup.version import VERSION

SCAFFOLD = Path(__file__).with_name("scaffold")
#: The layers of each depth, above the one that all have.
DEPTHS = {
    "ops": ("ops",),
    "kernels": ("rendered", "kernels"),
    "loops": ("rendered", "loops"),
    "programs": ("rendered", "kernels", "programs"),
}
OWN = "own"
LICENCES = ("Apache-2.0", "BSD-3-Clause", "MIT", "LicenseRef-Proprietary")
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9]*(?:[ ._-]+[A-Za-z0-9]+)*")


@record
class Names:
    """What a device is called by people, by users of bringup, by pip and by Python.

    stem: what the names of its classes begin with.
    """

    product: str
    device: str
    distribution: str
    module: str
    stem: str

    @classmethod
    def of(cls, product: str) -> Names:
        """Raises BringupError for a name of which the others cannot be made.

        >>> names = Names.of("Acme X1")
        >>> names.device, names.distribution, names.module, names.stem
        ('acme-x1', 'bringup-acme-x1', 'bringup_acme_x1', 'AcmeX1')
        """
        if not _NAME.fullmatch(product):
            raise BringupError(
                f"{product!r} cannot be the name of a device",
                fix="begin with a letter; use letters and digits of ASCII, spaces, '-', '_' and"
                " '.', as in 'Acme X1'",
            )
        words = re.findall(r"[A-Za-z0-9]+", product)
        device = "-".join(words).lower()
        module = f"bringup_{device.replace('-', '_')}"
        stem = "".join(word[0].upper() + word[1:] for word in words)
        return cls(product, device, f"bringup-{device}", module, stem)


def languages() -> dict[str, str]:
    """The dialects that core renders loops in, by their names in the command."""
    from bringup.c import DIALECTS

    return {name.rstrip("0123456789").lower(): name for name in DIALECTS}


def show(name: str, depth: str, language: str, path: str, licence: str, author: str) -> None:
    """Make a package, and say what to do next.  Raises as `generate`, and for a name in use."""
    names = Names.of(name)
    _check_free(names)
    folder = Path(path or names.distribution)
    files = generate(folder, names, depth, language, licence, author)
    line(f"{folder}: {names.distribution}, {len(files)} files")
    line()
    steps = (
        (f'pip install -e "{folder}[test]"', "the device is there"),
        (f"conformance run --backend={names.device} --level smoke", "and passes, simulated"),
        (f"bringup doctor {names.device}", "what is simulated, place by place"),
    )
    table(("next", "then"), steps)


def _check_free(names: Names) -> None:
    """Raises BringupError for names that another distribution has: both could not be installed."""
    fix = "choose another name, or uninstall it"
    every = candidates()
    for candidate in every:
        if candidate.name == names.device and candidate.distribution != names.distribution:
            what = f"{candidate.distribution} brings a device {names.device!r} already"
            raise BringupError(what, fix=fix)
    own = any(candidate.distribution == names.distribution for candidate in every)
    if not own and find_spec(names.module) is not None:
        raise BringupError(f"a package {names.module} is installed already", fix=fix)


def generate(
    folder: Path,
    names: Names,
    depth: str = "",
    language: str = "",
    licence: str = "",
    author: str = "",
) -> list[Path]:
    """Write a package into a new folder; returns its files.

    depth: by default ``loops`` if there is a language, else ``ops``.  language: by default the
    device's own, else one of `languages`, for loops.  licence: by default that of bringup.
    Raises BringupError for an unknown word, and for a folder that has something in it.
    """
    layers, dialect = _layers(depth, language)
    licence = _one_of("licence", licence or LICENCES[0], LICENCES)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        fix = "give a folder that is not there: --path FOLDER"
        raise BringupError(f"{folder} is there already", fix=fix)
    major, minor = map(int, VERSION.split(".")[:2])
    author = author or f"The developers of {names.distribution}"
    values = _Values(layers)
    values |= {
        "product": names.product,
        "device": names.device,
        "distribution": names.distribution,
        "module": names.module,
        "Class": names.stem,
        "dialect": dialect,
        "warp": str(_warp(dialect)),
        "licence": licence,
        "private": '\n    "Private :: Do Not Upload",' if licence == LICENCES[-1] else "",
        "author": author,
        "author_quoted": json.dumps(author, ensure_ascii=False),
        "year": str(date.today().year),
        "requirement": f">={major}.{minor},<{major}.{minor + 1}",
        "api": str(API_LEVEL),
        "opset": str(OPSET),
    }
    texts = {
        _place(file.relative_to(layer), names.module): file
        for layer in layers
        for file in sorted(layer.rglob("*.in"))
    }
    texts["LICENSE"] = SCAFFOLD / "licences" / f"{licence}.txt"
    for place, source in texts.items():
        file = folder / place
        file.parent.mkdir(parents=True, exist_ok=True)
        text = Template(source.read_text(encoding="utf-8")).substitute(values).rstrip()
        file.write_text(f"{text}\n" if text else "", encoding="utf-8")
    return [folder / place for place in texts]


def _layers(depth: str, language: str) -> tuple[list[Path], str]:
    """The folders of a package, and its dialect if it has one."""
    language = language or OWN
    depth = _one_of("depth", depth or ("ops" if language == OWN else "loops"), DEPTHS)
    dialects = languages()
    _one_of("language", language, [OWN, *dialects])
    layers = ["common", *DEPTHS[depth]]
    if depth == "loops" and language == OWN:
        layers.append("own")
    elif language != OWN:
        if depth != "loops":
            what = f"depth {depth} is in a language of the device's own, not in {language}"
            raise BringupError(what, fix=f"use --depth loops, or --language {OWN}")
        from bringup.c import DIALECTS

        threads = DIALECTS[dialects[language]].has_threads
        layers += ["dialect", "threads" if threads else "serial"]
    return [SCAFFOLD / layer for layer in layers], dialects.get(language, "")


def _warp(dialect: str) -> int:
    """The threads that exchange values in a dialect."""
    from bringup.c import DIALECTS

    row = DIALECTS.get(dialect)
    return row.warp if row is not None and row.shuffle else 1


def _one_of(what: str, word: str, words: Collection[str]) -> str:
    if word not in words:
        raise BringupError(f"no {what} is named {word!r}", fix=did_you_mean(word, words))
    return word


def _place(file: Path, module: str) -> str:
    """Where a text of a layer stands in a package."""
    parts = [part.replace("dot-", ".") for part in file.with_suffix("").parts]
    return "/".join(module if part == "package" else part for part in parts)


class _Values(dict[str, str]):
    """The values of variables; those of fragments are filled in themselves when asked for."""

    def __init__(self, layers: Sequence[Path]) -> None:
        self._fragments: dict[str, str] = {}
        for file in SCAFFOLD.glob(
            "*/fragments.toml"
        ):  # nothing, where the package has no such layer
            self._fragments |= dict.fromkeys(_fragments(file), "")
        for layer in layers:
            self._fragments |= _fragments(layer / "fragments.toml")

    def __missing__(self, name: str) -> str:
        """Raises KeyError for a name that no layer has."""
        return Template(self._fragments[name]).substitute(self)


def _fragments(file: Path) -> dict[str, str]:
    return tomllib.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
