"""Where attention drains: sums per key while a model runs, structural positions, sink statistics, context health."""
