"""An engine's side of the shared store of KV pages."""
