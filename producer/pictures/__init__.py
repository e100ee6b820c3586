"""Pictures of jobs: reapers note points of each job's life, who worked when, and where in the dataset."""
