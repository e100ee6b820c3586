"""The console in a real browser, over a real fleet."""
