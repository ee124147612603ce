"""The cluster simulator (`algorithms.md §8`, issue "The Brain", point 8): honest worlds, the production deciders, paired seeds.

`python -m bench.simulation gate|run|report|warm --help`. `port` documents how to bring a world or a policy of one's own.
"""
