"""The LLM side: usage, chat models through LiteLLM, and the batch engine for local models."""
