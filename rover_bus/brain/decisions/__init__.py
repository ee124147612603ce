"""What the Brain decides: pure functions from what is known to plans with reasons, scores and losers.

Fed by `brain.models`, history and the cluster's state; feeds the Brain's decider. No clock, no random, no bus.

Stage 1   `warm_start`      a new job starts from similar ones
Stage 2   `scaling`         one job: enumerate, front, score, choose, explain; plans for one member less
          `pareto`, `nsga2` the exact front, and the paper's search
          `rounds`          all jobs together: what each may get, one choice under capacity
          `scoring`         cost, gain, weight, hazard
          `knapsack`        one plan a job under shared capacity: dual prices and greedy, or exact
          `arbitration`     priorities, quotas, risks: shrink, pause, room again
          `optimus`         the baseline as a policy of its own; `placement` its theorem
Stage 3   `stragglers`, `hot_servers`, `memory_limits`
A plan    `plans`, `reasons`, `lifecycle` (may it, does it fit, did it pay), `stopping` (has the job done enough)
"""
