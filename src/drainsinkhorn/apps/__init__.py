"""Applications: flow matching, single cells, sensors, and adapters to other libraries."""
