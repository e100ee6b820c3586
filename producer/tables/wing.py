"""What tables offer the core, see `producer/wings.py`."""
