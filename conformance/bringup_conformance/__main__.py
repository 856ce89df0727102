"""``python -m bringup_conformance``: the command ``conformance``."""

from bringup_conformance.cli import main

if __name__ == "__main__":
    main()
