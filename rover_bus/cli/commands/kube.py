"""`rover kube`: what a cluster takes, made of a job file."""

from __future__ import annotations

from pathlib import Path

import click


@click.group()
def kube() -> None:
    """Work with Kubernetes."""


@kube.command()
@click.argument("job_file", type=click.Path(path_type=Path))
@click.option("--name", default="", help="Of the object; the file's own by default.")
def render(job_file: Path, name: str) -> None:
    """Print the RoverJob that JOB_FILE means, for `kubectl apply -f -`.

    Paths stay as they are written: on a cluster they are those of the image and its volumes.
    """
    from rover_bus.cli.yaml_text import to_yaml
    from rover_bus.kube.object import job_of, manifest_of

    made = manifest_of(job_file, name)
    job_of(made)  # refuses what an object cannot say
    click.echo("\n".join(to_yaml(made)))
