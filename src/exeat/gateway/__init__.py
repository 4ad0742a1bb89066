"""The gateway: accept, door, gates, flow, record."""
