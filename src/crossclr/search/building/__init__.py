"""From a run to its index: embed the items, count hubs, lay out the map, write a generation."""
