"""The sink: everything readers ask for goes from the log into the state store."""
