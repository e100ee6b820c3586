"""What a row costs a child."""
