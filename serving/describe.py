"""What a worker says about itself and its model: metadata, configuration and statistics of the protocol.

Pure functions from values to JSON documents. The configuration is Triton's extension, which its clients ask for before
they send; the statistics are its statistics extension, in nanoseconds, as far as this worker counts them.

Source: kserve/open-inference-protocol, inference_rest.md; Triton docs/protocol/extension_model_configuration.md and
extension_statistics.md.
"""

from serving.metrics import Totals
from serving.protocol import Json, ModelInfo, TensorInfo

EXTENSIONS = ["binary_tensor_data", "model_configuration", "statistics"]
PLATFORM = "treering"
NANOSECONDS = 1_000_000_000


def server_metadata() -> Json:
    """Describe the server: ``GET /v2``."""
    return {"name": "treering", "version": "0.1.0", "extensions": EXTENSIONS}


def model_metadata(model: ModelInfo, *, version: str, root: str) -> Json:
    """Describe the model: ``GET /v2/models/NAME``; −1 stands for the number of rows."""
    return {
        "name": model.name,
        "versions": [version],
        "platform": PLATFORM,
        "inputs": [_tensor(info) for info in model.inputs],
        "outputs": [_tensor(info) for info in model.outputs],
        "parameters": {"treering_root": root},
    }


def _tensor(info: TensorInfo) -> Json:
    return {"name": info.name, "datatype": info.datatype.name, "shape": [-1, *info.row_shape]}


def model_config(model: ModelInfo, *, buckets: tuple[int, ...]) -> Json:
    """Describe the model as Triton's configuration does: dimensions without the rows."""
    return {
        "name": model.name,
        "platform": PLATFORM,
        "backend": PLATFORM,
        "max_batch_size": model.max_rows,
        "input": [_config_tensor(info) for info in model.inputs],
        "output": [_config_tensor(info) for info in model.outputs],
        "dynamic_batching": {"preferred_batch_size": list(buckets), "max_queue_delay_microseconds": 0},
    }


def _config_tensor(info: TensorInfo) -> Json:
    return {"name": info.name, "data_type": f"TYPE_{info.datatype.name}", "dims": list(info.row_shape)}


def model_statistics(model: str, *, version: str, totals: Totals) -> Json:
    """Write the statistics of the model since the worker started."""
    return {
        "model_stats": [
            {
                "name": model,
                "version": version,
                "last_inference": totals.last_ms,
                "inference_count": totals.rows,
                "execution_count": totals.batches,
                "inference_stats": {
                    "success": _duration(totals.ok, totals.ok_s),
                    "fail": _duration(totals.failed, totals.failed_s),
                    "queue": _duration(totals.ok + totals.failed, totals.queue_s),
                    "compute_infer": _duration(totals.batches, totals.compute_s),
                },
                "batch_stats": [],
            }
        ]
    }


def _duration(count: int, seconds: float) -> Json:
    return {"count": count, "ns": round(seconds * NANOSECONDS)}
