"""HTTP: probes, metrics, a JSON API, the page. The only importer of aiohttp and prometheus_client (docs/design/0063).

Read port.py first: what is served is asked of a `Page`, which `cli` puts together from the views of its commands. Then

    access.py      who may ask for what: tokens, names of hosts, other sites
    routes.py      every route as data; api.py: their handlers; bodies.py: what they answer; openapi.py: the document of both
    families.py    every metric as data; rendering.py: figures as Prometheus reads them
    static/        the page: ES modules without a build step; static_files.py reads them
    streaming.py   events as they happen, from any sequence on
    server.py      the application and its socket; probe.py: two words for a process that serves nothing else
"""
