"""A spec is drafted from a look at an input: columns, guesses, and what a person fills in."""
