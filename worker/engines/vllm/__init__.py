"""The only package that imports vllm."""
