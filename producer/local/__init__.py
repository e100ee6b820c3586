"""`nightshift run`: the whole fleet on one machine, with its own Postgres and Redis."""
