"""What a family plugin needs to test itself against the engine and against transformers."""
