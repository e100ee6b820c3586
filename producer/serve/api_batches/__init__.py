"""What becomes of a batch of the OpenAI API, without HTTP: validated, run as a job, finalized."""
