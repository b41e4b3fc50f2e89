"""One class a family: the whole test of a family is the conformance suite."""
