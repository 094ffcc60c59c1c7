import pytest

from jupyter_gpu.core.remote_errors import is_remote

FULL = "CUDA out of memory. Tried to allocate 2.00 GiB."


@pytest.mark.parametrize(
    ("types", "modules", "message"),
    [
        (("ray.exceptions", "builtins"), ("__main__",), FULL),
        (("builtins",), ("__main__", "ray._private.worker"), FULL),
        (("builtins",), ("__main__", "distributed.client", "torch.cuda"), FULL),
        (("dask.multiprocessing", "builtins"), ("__main__",), FULL),
        (("ipyparallel.error",), (), FULL),
        (("pyspark.errors.exceptions.base", "builtins"), (), FULL),
        (("builtins",), ("__main__", "torch.distributed.rpc.internal"), FULL),
        (("torch",), ("__main__",), f"On WorkerInfo(id=1, name=worker1):\n{FULL}"),
        (
            ("tensorflow.python.framework.errors_impl",),
            (),
            "OOM when allocating on /job:worker/replica:0/task:1/device:GPU:0",
        ),
        (("builtins",), ("__main__", "client"), f"Traceback (most recent call last):\n{FULL}"),
    ],
)
def test_what_was_raised_elsewhere_is_told(types, modules, message):
    assert is_remote(types, modules, message)


@pytest.mark.parametrize(
    ("types", "modules", "message"),
    [
        (("torch", "builtins"), ("__main__", "torch.cuda"), FULL),
        (("builtins",), ("__main__", "dask.threaded", "torch.cuda"), FULL),
        (("builtins",), ("__main__", "raytracer", "distributed_things"), FULL),
        (("torch.distributed",), ("torch.distributed.distributed_c10d",), "Duplicate GPU"),
        (("tensorflow",), (), "OOM on /job:localhost/replica:0/task:0/device:GPU:0"),
    ],
)
def test_what_was_raised_here_is_not(types, modules, message):
    assert not is_remote(types, modules, message)


def test_a_traceback_of_a_process_of_this_machine_is_not():
    message = f"Original Traceback (most recent call last):\n{FULL}"
    assert not is_remote(("builtins",), ("torch._utils",), message, explained=True)
