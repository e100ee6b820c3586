"""Prompt templates: the sandbox they run in, and what one rendering may make."""
