"""Search adjustments fitted after training: anchors, hub correction, linear views."""
