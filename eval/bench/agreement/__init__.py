"""The simulator beside the engine that it stands for."""
