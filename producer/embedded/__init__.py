"""The servers of one machine: Postgres and Redis out of wheels, below a home folder."""
