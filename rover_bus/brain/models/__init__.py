"""What the Brain knows of a job: how fast it runs, how it learns, how it grows.

Fed by samples with units, feeds `brain.decisions` and `brain.fitting`. Pure: no clock, no random, no bus.

- `samples`      configurations and observations, as columns of numpy arrays
- `forms`        the resource-performance forms: ours, and Optimus' two
- `nnls`         non-negative least squares on normal equations, one job or a fleet at once
- `statistics`   sufficient statistics with forgetting: a refit costs O(k^2), whatever the history
- `throughput`   the model of one job: form + Gaussian process on the log residual + 90 % intervals
- `residual`     that Gaussian process, its hyperparameters averaged
- `selection`    which form, by cross-validation
- `probing`      which configuration to measure next (I-optimal)
- `ingest`       min(compute, ingest): a job is as slow as its slower half
- `core_use`     what members use of their cores bounds a form; containers that hold back
- `bursts`       what a container smaller than a burst costs
- `power_law`    figures that change with the counts of members
- `implied`      what one measured size implies of those beside it
- `convergence`  Optimus' loss curve and the steps that remain
- `hosts`        how fast a host is, by what members showed there
- `hazard`       how often the cluster takes members, counted
- `memory`       linear and Heaps growth, upper bounds, time to the limit
"""
