"""Process groups that end with their parent, and the embedded Postgres and Redis under one home folder."""
