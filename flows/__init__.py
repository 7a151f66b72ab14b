"""Flows: the only orchestrator, the local stack, and the command line.

Each flow is one module and calls one public function of a package for each step; what passes between them are paths,
digests and numbers, never tensors. Only this package knows Prefect.

    ingest     rows from outside → a validated data set
    train      a data set → weights, figures in MLflow
    release    weights → compiled, verified, judged, checkpointed, published
    deploy     a version → promoted, and served by every worker, or taken back
    watch      the workers' metrics → an alarm, which calls rollback
    rollback   a suspect root → the version before it, quarantined; a recorded no-op when it is not live
    pipeline   all of it, with traffic running and every answer checked: the demo

``python -m flows up`` starts the servers, ``prefect deployment run 'pipeline/default'`` runs the pipeline in them,
``python -m flows demo`` does both and cleans up. ``prefect.yaml`` names the deployments.
"""

__all__: list[str] = []
