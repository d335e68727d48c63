"""One simulated SGLang-like instance, driven by the same policies as the engine."""
