"""What a job will take before it runs, and a pilot that finds out."""
