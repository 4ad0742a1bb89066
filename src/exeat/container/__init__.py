"""Images, sidecars and pools of containers, on top of what one run is made of."""
