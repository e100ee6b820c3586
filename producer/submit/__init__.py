"""Submit: files and a spec become a job and its batches."""
