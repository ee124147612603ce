"""The policies that are measured against one another. Ours call the production deciders and nothing else (`staged`, `optimus`).

`static`     static user, no intervention, well-tuned static at 0.9, 0.8 and 0.7 of the best
`optimus`    Optimus: user containers, tuned containers; the production allocator
`elastic`    an elastic scheduler (fair share, the user's containers), and the public Brain's rules
`equipped`   any of them with our mechanisms

`staged`     our stages {1} {2} {3} {1+2} {1+2+3}
`on_the_bus` any policy behind the simulated bus; `live` the decider of the live Brain
`oracle`     the truth is known: exact knapsack; with our mechanisms; with perfect samples; and the bound no policy can pass
"""
