"""Tables of a lake, Delta and Iceberg: a job's parts become part of one, and its rows come out of one."""
