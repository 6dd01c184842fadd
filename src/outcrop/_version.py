"""The version; pyproject.toml says the same, and a test holds the two together."""

__version__ = "0.1.0"
