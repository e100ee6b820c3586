"""The HTTP API beside a bare server: polls, creates, files up and down, results."""
