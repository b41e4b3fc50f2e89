"""Collection for data sets: values of many prompts at the engine's own speed, to memory or to files."""
