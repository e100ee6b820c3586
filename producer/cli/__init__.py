"""The `nightshift` command: one thin function a command."""
