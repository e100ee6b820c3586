"""The remote engine: a server that speaks the OpenAI API. The only package that imports openai."""
