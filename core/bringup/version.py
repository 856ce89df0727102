"""The version of the distribution, for those parts of it that may not import the whole."""

VERSION = "0.1.0"
