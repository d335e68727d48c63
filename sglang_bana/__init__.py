"""Everything that runs SGLang: engine, front door and the processes of a cluster."""
