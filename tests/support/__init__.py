"""Checkpoints, engines and references for the tests of the core."""
