"""Where jobs run: in this process, or in others through an integration (``--executor ray``)."""
