"""Which errors are recognised: the libraries' own words, and what is anybody's."""

import pytest

from jupyter_gpu.core.failures import Origin, Raised, candidates, confirmed

BUILTIN = {
    "AssertionError": ("AssertionError",),
    "AttributeError": ("AttributeError",),
    "IndexError": ("IndexError", "LookupError"),
    "KeyError": ("KeyError", "LookupError"),
    "MemoryError": ("MemoryError",),
    "OSError": ("OSError",),
    "RuntimeError": ("RuntimeError",),
    "TypeError": ("TypeError",),
    "ValueError": ("ValueError",),
}
ASYNC = (
    "\nCUDA kernel errors might be asynchronously reported at some other API call,so the "
    "stacktrace below might be incorrect.\nFor debugging consider passing CUDA_LAUNCH_BLOCKING=1."
)
DSA = f"{ASYNC}\nCompile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.\n"
NEWER = (
    "\nGPU device may be out of range, do you have enough GPUs?\nSearch for "
    f"`cudaErrorInvalidDevice' in https://docs.nvidia.com/cuda/cuda-runtime-api.html{DSA}"
)
CELL, TORCH = ("__main__",), ("__main__", "torch.cuda")


def raised(kind, message):
    """An exception of ``"RuntimeError"``, or of ``"torch.OutOfMemoryError(RuntimeError)"``."""
    own, _, base = kind.partition("(")
    module, _, name = own.rpartition(".")
    known = BUILTIN[base.removesuffix(")") or name] if base or not module else ()
    classes = tuple(("builtins", one) for one in known)
    return Raised(((module, name), *classes) if module else classes, message)


def kind_of(kind, message, modules=CELL, by_cell=False):
    one = raised(kind, message)
    found = confirmed(candidates(one), one, Origin(modules, by_cell))
    return None if found is None else found.kind


OURS = [
    # torch 1.13
    ("RuntimeError", f"CUDA error: invalid device ordinal{ASYNC}", TORCH, "device id"),
    (
        "torch.cuda.OutOfMemoryError(RuntimeError)",
        (
            "CUDA out of memory. Tried to allocate 20.00 MiB (GPU 0; 14.76 GiB total capacity; 13.01 "
            "GiB already allocated; 11.75 MiB free; 13.04 GiB reserved in total by PyTorch)"
        ),
        CELL,
        "out of memory",
    ),
    (
        "RuntimeError",
        "CUDA out of memory. Tried to allocate 20.00 MiB (GPU 0; 14",
        CELL,
        "out of memory",
    ),
    ("RuntimeError", "No CUDA GPUs are available", TORCH, "no gpu"),
    ("AssertionError", "Invalid device id", TORCH, "device id"),
    ("AssertionError", "Invalid peer device id", TORCH, "device id"),
    ("AssertionError", "Torch not compiled with CUDA enabled", TORCH, "cpu build"),
    (
        "RuntimeError",
        (
            "Attempting to deserialize object on CUDA device 3 but torch.cuda.device_count() is 1. "
            "Please use torch.load with map_location to map your storages to an existing device."
        ),
        ("__main__", "torch.serialization"),
        "device id",
    ),
    (
        "RuntimeError",
        "Attempting to deserialize object on a CUDA device but torch.cuda.is_available() is False.",
        ("__main__", "torch.serialization"),
        "no gpu",
    ),
    (
        "RuntimeError",
        (
            "module must have its parameters and buffers on device cuda:1 (device_ids[0]) but found "
            "one of them on device: cpu"
        ),
        ("__main__", "torch.nn.modules.module", "torch.nn.parallel.data_parallel"),
        "model elsewhere",
    ),
    # torch 2.3
    ("RuntimeError", f"CUDA error: invalid device ordinal{DSA}", TORCH, "device id"),
    (
        "torch.cuda.OutOfMemoryError(RuntimeError)",
        "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.15 GiB",
        CELL,
        "out of memory",
    ),
    (
        "RuntimeError",
        (
            "Cannot re-initialize CUDA in forked subprocess. To use CUDA with multiprocessing, you "
            "must use the 'spawn' start method"
        ),
        TORCH,
        "forked",
    ),
    (
        "RuntimeError",
        (
            "Caught RuntimeError in DataLoader worker process 0.\nOriginal Traceback (most recent call "
            "last):\nRuntimeError: Cannot re-initialize CUDA in forked subprocess. To use CUDA"
        ),
        ("__main__", "torch.utils.data.dataloader", "torch._utils"),
        "forked",
    ),
    (
        "RuntimeError",
        (
            "CUDA unknown error - this may be due to an incorrectly set up environment, e.g. changing "
            "env variable CUDA_VISIBLE_DEVICES after program start. Setting the available devices to "
            "be zero."
        ),
        TORCH,
        "unknown error",
    ),
    (
        "RuntimeError",
        (
            "Unexpected error from cudaGetDeviceCount(). Did you run some cuda functions before calling "
            "NumCudaDevices() that might have already set an error? Error 3: initialization error"
        ),
        TORCH,
        "initialization",
    ),
    ("RuntimeError", f"CUDA error: initialization error{DSA}", CELL, "initialization"),
    (
        "RuntimeError",
        (
            "Found no NVIDIA driver on your system. Please check that you have an NVIDIA GPU and "
            "installed a driver from http://www.nvidia.com/Download/index.aspx"
        ),
        TORCH,
        "no driver",
    ),
    (
        "RuntimeError",
        "The NVIDIA driver on your system is too old (found version 11040). Please update your GPU",
        TORCH,
        "old driver",
    ),
    (
        "RuntimeError",
        "CUDA driver initialization failed, you might not have a CUDA gpu.",
        TORCH,
        "no gpu",
    ),
    (
        "torch.cuda.DeferredCudaCallError",
        (
            "CUDA call failed lazily at initialization with error: device >= 0 && device < num_gpus "
            'INTERNAL ASSERT FAILED at "../aten/src/ATen/cuda/CUDAContext.cpp":49, please report a bug '
            "to PyTorch. device=1, num_gpus=1"
        ),
        TORCH,
        "count changed",
    ),
    (
        "RuntimeError",
        f"CUDA error: CUDA-capable device(s) is/are busy or unavailable{DSA}",
        CELL,
        "busy",
    ),
    ("RuntimeError", f"CUDA error: no CUDA-capable device is detected{DSA}", CELL, "no gpu"),
    ("RuntimeError", f"CUDA error: out of memory{DSA}", CELL, "out of memory"),
    (
        "RuntimeError",
        "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
        CELL,
        "out of memory",
    ),
    (
        "RuntimeError",
        f"CUDA error: peer access is not supported between these two devices{DSA}",
        CELL,
        "peer access",
    ),
    ("IndexError", "tuple index out of range", ("__main__", "torch.cuda.random"), "device id"),
    # torch 2.13
    (
        "torch.AcceleratorError(RuntimeError)",
        f"CUDA error: invalid device ordinal{NEWER}",
        CELL,
        "device id",
    ),
    (
        "torch.OutOfMemoryError(RuntimeError)",
        "CUDA out of memory. Tried to allocate 2.00 GiB.",
        CELL,
        "out of memory",
    ),
    (
        "torch.AcceleratorError(RuntimeError)",
        f"CUDA error: out of memory{DSA}",
        CELL,
        "out of memory",
    ),
    ("RuntimeError", "Cannot access accelerator device when none is available.", CELL, "no gpu"),
    ("AttributeError", "module 'torch._C' has no attribute '_cuda_setDevice'", TORCH, "cpu build"),
    (
        "RuntimeError",
        "torch.cuda.Stream requires CUDA support",
        ("__main__", "torch.cuda.streams"),
        "cpu build",
    ),
    (
        "RuntimeError",
        "Cannot get CUDA generator without ATen_cuda library. PyTorch splits",
        CELL,
        "cpu build",
    ),
    (
        "torch.distributed.DistBackendError(RuntimeError)",
        (
            "NCCL error in: NCCLUtils.cpp, invalid usage\nLast error:\nDuplicate GPU detected : rank 1 "
            "and rank 0 both on CUDA device 1000"
        ),
        ("__main__", "torch.distributed.distributed_c10d"),
        "same gpu",
    ),
    ("ValueError", "invalid literal for int() with base 10: '+'", TORCH, "unreadable value"),
    # TensorFlow 2
    (
        "RuntimeError",
        "Visible devices cannot be modified after being initialized",
        ("__main__", "tensorflow.python.eager.context"),
        "tensorflow late",
    ),
    (
        "RuntimeError",
        "Physical devices cannot be modified after being initialized",
        ("__main__", "tensorflow.python.eager.context"),
        "tensorflow late",
    ),
    (
        "RuntimeError",
        "Virtual devices cannot be modified after being initialized",
        ("__main__", "tensorflow.python.eager.context"),
        "tensorflow late",
    ),
    (
        "ValueError",
        "Memory growth cannot differ between GPU devices",
        ("__main__", "tensorflow.python.eager.context"),
        "memory growth",
    ),
    (
        "tensorflow.python.framework.errors_impl.InvalidArgumentError",
        (
            "Could not satisfy device specification '/job:localhost/replica:0/task:0/device:GPU:3'. "
            "enable_soft_placement=0. All available devices [/job:localhost/device:CPU:0]."
        ),
        CELL,
        "device id",
    ),
    (
        "tensorflow.python.framework.errors_impl.InvalidArgumentError",
        (
            "Cannot assign a device for operation a: node was explicitly assigned to /device:GPU:3 but "
            "available devices are [ /job:localhost/replica:0/task:0/device:CPU:0 ]."
        ),
        CELL,
        "device id",
    ),
    (
        "tensorflow.python.framework.errors_impl.ResourceExhaustedError",
        (
            "OOM when allocating tensor with shape[9] and type float on /job:localhost/replica:0/task:0"
            "/device:GPU:0 by allocator GPU_0_bfc [Op:Mul]"
        ),
        ("__main__", "keras.src.utils.traceback_utils"),
        "out of memory",
    ),
    (
        "tensorflow.python.framework.errors_impl.InternalError",
        "failed call to cuInit: CUDA_ERROR_NO_DEVICE: no CUDA-capable device is detected",
        CELL,
        "no gpu",
    ),
    (
        "tensorflow.python.framework.errors_impl.InternalError",
        (
            "Failed copying input tensor from CPU:0 to /job:localhost/device:GPU:0 in order to run "
            "_EagerConst: Dst tensor is not initialized."
        ),
        CELL,
        "out of memory",
    ),
    # JAX 0.4 to 0.11
    (
        "jaxlib.xla_extension.XlaRuntimeError(RuntimeError)",
        "RESOURCE_EXHAUSTED: Out of memory while trying to allocate 5520758552 bytes.",
        CELL,
        "out of memory",
    ),
    (
        "jax.errors.JaxRuntimeError(RuntimeError)",
        "RESOURCE_EXHAUSTED: Failed to allocate request for 2.99GiB (3B) on device ordinal 0",
        CELL,
        "out of memory",
    ),
    (
        "RuntimeError",
        "Unknown backend: 'gpu' requested, but no platforms that are instances of gpu are present. Platforms present are: cpu",
        ("__main__", "jax._src.xla_bridge"),
        "jax backend",
    ),
    (
        "RuntimeError",
        "Unable to initialize backend 'cuda': INTERNAL: no supported devices found for platform CUDA",
        ("__main__", "jax._src.xla_bridge"),
        "jax backend",
    ),
    (
        "ValueError",
        "XLA_CLIENT_MEM_FRACTION is specified together with XLA_PYTHON_CLIENT_MEM_FRACTION. Remove the latter one, it is deprecated.",
        ("__main__", "jaxlib.xla_client"),
        "jax fractions",
    ),
    # CuPy, Numba, PyCUDA, Paddle, RMM
    (
        "cupy_backends.cuda.api.runtime.CUDARuntimeError(RuntimeError)",
        "cudaErrorInvalidDevice: invalid device ordinal",
        CELL,
        "device id",
    ),
    (
        "cupy_backends.cuda.api.runtime.CUDARuntimeError(RuntimeError)",
        "cudaErrorNoDevice: no CUDA-capable device is detected",
        CELL,
        "no gpu",
    ),
    (
        "cupy_backends.cuda.api.runtime.CUDARuntimeError(RuntimeError)",
        "cudaErrorInsufficientDriver: CUDA driver version is insufficient for CUDA runtime version",
        CELL,
        "old driver",
    ),
    (
        "cupy.cuda.memory.OutOfMemoryError(MemoryError)",
        "Out of memory allocating 8,589,934,592 bytes (allocated so far: 0 bytes).",
        CELL,
        "out of memory",
    ),
    (
        "IndexError",
        "list index out of range",
        ("__main__", "numba.cuda.cudadrv.devices"),
        "device id",
    ),
    (
        "numba.cuda.cudadrv.driver.CudaAPIError",
        "2 Call to cuMemAlloc results in CUDA_ERROR_OUT_OF_MEMORY",
        CELL,
        "out of memory",
    ),
    (
        "numba.cuda.cudadrv.error.CudaSupportError",
        "Error at driver init: Call to cuInit results in CUDA_ERROR_NO_DEVICE",
        CELL,
        "no gpu",
    ),
    (
        "numba.cuda.cudadrv.driver.CudaDriverError",
        "CUDA initialized before forking",
        CELL,
        "forked",
    ),
    ("pycuda._driver.LogicError", "cuDeviceGet failed: invalid device ordinal", CELL, "device id"),
    ("pycuda._driver.MemoryError", "cuMemAlloc failed: out of memory", CELL, "out of memory"),
    (
        "MemoryError",
        "std::bad_alloc: out_of_memory: CUDA error at: mr.hpp:60: cudaErrorMemoryAllocation out of memory",
        ("__main__", "cudf.core.column"),
        "out of memory",
    ),
    # Lightning, Ultralytics, vLLM
    (
        "lightning.fabric.utilities.exceptions.MisconfigurationException",
        "You requested gpu: [2, 3]\n But your machine only has: [0, 1]",
        CELL,
        "device id",
    ),
    (
        "pytorch_lightning.utilities.exceptions.MisconfigurationException",
        "No supported gpu backend found!",
        CELL,
        "no gpu",
    ),
    (
        "ValueError",
        "Invalid CUDA 'device=3' requested. Use 'device=cpu' or pass valid CUDA device(s)",
        ("__main__", "ultralytics.utils.torch_utils"),
        "device id",
    ),
    (
        "ValueError",
        "invalid literal for int() with base 10: 'GPU-52a3a85d-3c55-ca3a-a955-82c69ed360fc'",
        ("__main__", "vllm.platforms.cuda"),
        "uuid",
    ),
    (
        "ValueError",
        "invalid literal for int() with base 10: 'MIG-377e0049-554c-540b-93c6-d0976f8426cb'",
        ("__main__", "vllm.platforms.interface"),
        "uuid",
    ),
]


@pytest.mark.parametrize(("kind", "message", "modules", "expected"), OURS)
def test_what_the_libraries_say_is_recognised(kind, message, modules, expected):
    assert kind_of(kind, message, modules) == expected


@pytest.mark.parametrize(
    ("kind", "message", "modules", "by_cell"),
    [
        ("AssertionError", "Invalid device id", CELL, True),
        ("AssertionError", "Invalid device id", ("__main__", "my_drivers"), False),
        ("AssertionError", "Torch not compiled with CUDA enabled", CELL, True),
        ("RuntimeError", "CUDA out of memory", CELL, True),
        ("RuntimeError", "No CUDA GPUs are available", CELL, True),
        ("RuntimeError", "CUDA error: invalid device function", CELL, False),
        ("RuntimeError", "cudaErrorInvalidDeviceFunction: invalid device function", CELL, False),
        ("RuntimeError", "CUDA error: device-side assert triggered", CELL, False),
        (
            "RuntimeError",
            "Expected all tensors to be on the same device, cuda:0 and cpu!",
            CELL,
            False,
        ),
        ("KeyError", "No CUDA GPUs are available", CELL, False),
        ("KeyError", "cuda:3", CELL, False),
        ("ValueError", "invalid literal for int() with base 10: 'CUDA out of memory'", CELL, False),
        ("ValueError", "invalid literal for int() with base 10: 'x'", CELL, False),
        ("ValueError", "CUDA error: invalid device ordinal", CELL, True),
        ("TypeError", "CUDA out of memory", CELL, False),
        ("IndexError", "list index out of range", CELL, False),
        ("IndexError", "list index out of range", ("__main__", "torch.utils.data.dataset"), False),
        ("IndexError", "tuple index out of range", ("__main__", "numpy.lib"), False),
        ("MemoryError", "Unable to allocate 8.00 TiB for an array", CELL, False),
        ("RuntimeError", "DefaultCPUAllocator: can't allocate memory", CELL, False),
        (
            "jaxlib.xla_extension.XlaRuntimeError(RuntimeError)",
            "RESOURCE_EXHAUSTED: Out of memory allocating 10 bytes.",
            CELL,
            False,
        ),
        (
            "tensorflow.python.framework.errors_impl.ResourceExhaustedError",
            "OOM when allocating tensor on device:CPU:0 by allocator cpu",
            CELL,
            False,
        ),
        ("AttributeError", "module 'torch' has no attribute 'cud'", CELL, False),
        *(
            ("RuntimeError", message, ("__main__", "other.device"), False)
            for message in (
                "PortAudio: invalid device ordinal 7",
                "printer(s) is/are busy or unavailable",
                "wgpu: invalid device ordinal 7",
                "peer access is not supported between bob and carol",
                "Peer mapping resources exhausted",
                "module.c: error 3: initialization error",
                "Serial devices cannot be modified after being initialized",
                "Unknown backend: 'gpu'",
                "Unable to initialize backend 'cuda'",
                "No supported GPU backend found",
                "No visible GPU devices",
                "Duplicate GPU detected in the inventory of the shop",
                "RESOURCE_EXHAUSTED: Out of memory while reading the answer",
                "Failed to allocate request for a seat",
                "device >= 0 && device < num_gpus",
            )
        ),
        (
            "ValueError",
            "Memory growth cannot differ between GPU devices",
            ("__main__", "other"),
            False,
        ),
        ("other.Error(RuntimeError)", "invalid device ordinal", CELL, False),
        ("RuntimeError", "", CELL, False),
    ],
)
def test_what_is_anybodys_is_not(kind, message, modules, by_cell):
    assert kind_of(kind, message, modules, by_cell) is None


@pytest.mark.parametrize(
    ("kind", "message", "modules"),
    [
        ("RuntimeError", "cudaErrorInvalidDevice: invalid device ordinal", ("__main__", "other")),
        ("RuntimeError", "CUDA error: invalid device ordinal", ("__main__", "other")),
        ("RuntimeError", "cuDeviceGet failed: invalid device ordinal", ("__main__", "other")),
        ("RuntimeError", "GPU: invalid device ordinal", ("__main__", "other")),
        ("RuntimeError", "invalid device ordinal", ("__main__", "torch.cuda")),
        ("cupy.Error(RuntimeError)", "invalid device ordinal", ("__main__", "other")),
    ],
)
def test_short_texts_count_where_they_are_cudas(kind, message, modules):
    assert kind_of(kind, message, modules) == "device id"


def test_a_message_that_never_ends_is_read_at_both_ends():
    end = "x" * 300_000 + "\nRuntimeError: Cannot re-initialize CUDA in forked subprocess."
    assert kind_of("RuntimeError", end) == "forked"
    begin = "CUDA out of memory." + "x" * 300_000
    assert kind_of("RuntimeError", begin) == "out of memory"


def test_the_framework_and_the_way_to_it_are_told():
    one = raised("RuntimeError", "No CUDA GPUs are available")
    modules = ("__main__", "runpy", "transformers.trainer", "accelerate.state", "torch.cuda")
    found = confirmed(candidates(one), one, Origin(modules), cpu_build=False)
    assert (found.framework, found.libraries) == ("torch", ("transformers", "accelerate"))
    assert found.cpu_build is False
    plain = confirmed(candidates(one), one, Origin(()))
    assert (plain.framework, plain.libraries) == (None, ())
    assert not found.worker
    pool = ("__main__", "multiprocessing.pool")
    assert confirmed(candidates(one), one, Origin(pool)).worker
    own = raised("jax.errors.JaxRuntimeError(RuntimeError)", "CUDA_ERROR_NO_DEVICE")
    assert confirmed(candidates(own), own, Origin(TORCH)).framework == "JAX"
