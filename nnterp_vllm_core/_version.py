"""The core's version, read by the build and compared between driver and worker."""

__version__ = "0.1.0"
