"""Who proposes edits: an extractive one that needs no model, and a language model through LiteLLM."""
