"""`/v1`: files, batches and models, as unmodified clients of the OpenAI API expect them."""
