"""rover_bus: an elastic control plane for recommendation-model training, known to itself only through events."""

__version__ = "0.3.0"
