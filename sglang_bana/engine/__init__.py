"""What runs inside a SGLang process: the only place that imports SGLang or torch."""
