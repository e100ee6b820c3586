"""A second job over the answers of a first one, and the score that it gives them."""
