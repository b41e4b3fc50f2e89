"""Tests of the conformance kit itself."""
