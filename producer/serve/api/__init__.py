"""`/api`: jobs, webhooks and what people ask of a job, as JSON."""
