"""A wing: a reaper looks again and again at the input of a job, and takes the files that came."""
