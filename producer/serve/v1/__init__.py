"""`/v1`: files, uploads, batches and models, as unmodified clients of the OpenAI API expect them."""
