"""The command ``bringup``: what is installed, what it can do, what a function becomes."""


def main() -> None:
    """Run the command line; the entry point of the console script."""
    from bringup.cli.app import run  # its libraries are for the command alone

    run()
