"""What ships the code is checked without a container engine: files, their words, their commands."""
