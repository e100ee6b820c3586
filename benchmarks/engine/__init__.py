"""The engine benchmark: the same rows through raw vLLM, a naive Celery loop and the fleet."""
