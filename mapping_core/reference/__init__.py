"""Reference networks and data: what the demo, the benchmarks and the tests train on.

`models` holds the paper's networks, `data` loaders for small public data sets. Both have
built-in names, so that a TOML file can say ``target = "cnn2"`` and ``data = "mnist"``.
"""
