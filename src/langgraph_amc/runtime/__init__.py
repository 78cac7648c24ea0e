"""A LangGraph app as particles: copy-on-write saver, held streams, boundaries, isolation, the facade."""
