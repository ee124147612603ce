"""The policies that are measured against one another. Ours is the Brain that a cluster runs (`live`).

`static`     static user, no intervention, well-tuned static at 0.9, 0.8 and 0.7 of the best
`optimus`    Optimus: user containers, tuned containers; the production allocator
`elastic`    an elastic scheduler (fair share, the user's containers), and the public Brain's rules
`equipped`   any of them with our mechanisms

`live`       the live Brain, and some of its stages only: {1} {2} {3} {1+2} {1+2+3}
`on_the_bus` any policy behind the simulated bus
`oracle`     the live Brain, told the truth: changes for nothing, with our mechanisms, perfect samples; the bound that none can pass
"""
