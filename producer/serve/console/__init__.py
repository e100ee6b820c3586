"""The console: pages of `nightshift serve` for people, without a shell."""
