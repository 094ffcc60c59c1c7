/* What is inside a GPU: its MIG devices and its processes. */
#define _GNU_SOURCE
#include "nvml_calls.h"

static int mig_mode(const node *gpu) {
    return has(gpu, "mig_mode") ? truth(gpu, "mig_mode") : length(member(gpu, "mig")) > 0;
}

int nvmlDeviceGetMigMode(device handle, uint *current, uint *pending) {
    FIND(nvmlDeviceGetMigMode, handle);
    if (at.slot >= 0) return end(INVALID_ARGUMENT);
    if (!has(at.gpu, "mig_mode") && !has(at.gpu, "mig")) return end(NOT_SUPPORTED);
    *current = *pending = (uint)mig_mode(at.gpu);
    return end(SUCCESS);
}

int nvmlDeviceGetMaxMigDeviceCount(device handle, uint *count) {
    FIND(nvmlDeviceGetMaxMigDeviceCount, handle);
    *count = mig_mode(at.gpu) ? 7 : 0;
    return end(SUCCESS);
}

int nvmlDeviceGetMigDeviceHandleByIndex(device handle, uint slot, device *mig) {
    FIND(nvmlDeviceGetMigDeviceHandleByIndex, handle);
    const node *found = mig_in(at.gpu, (int)slot);
    if (!found) return end(NOT_FOUND);
    *mig = handle_of(at.index, (int)slot);
    return end((int)number(member(found, "errors"), "nvmlDeviceGetMigDeviceHandleByIndex", 0));
}

int nvmlDeviceGetDeviceHandleFromMigDeviceHandle(device mig, device *handle) {
    FIND(nvmlDeviceGetDeviceHandleFromMigDeviceHandle, mig);
    *handle = handle_of(at.index, -1);
    return end(at.slot < 0 ? INVALID_ARGUMENT : SUCCESS);
}

int nvmlDeviceIsMigDeviceHandle(device handle, uint *is_mig) {
    FIND(nvmlDeviceIsMigDeviceHandle, handle);
    *is_mig = at.slot >= 0;
    return end(SUCCESS);
}

int nvmlDeviceGetGpuInstanceId(device handle, uint *id) {
    FIND(nvmlDeviceGetGpuInstanceId, handle);
    *id = (uint)number(at.it, "gpu_instance", at.slot + 1);
    return end(at.slot < 0 ? NOT_SUPPORTED : SUCCESS);
}

int nvmlDeviceGetComputeInstanceId(device handle, uint *id) {
    FIND(nvmlDeviceGetComputeInstanceId, handle);
    *id = (uint)number(at.it, "compute_instance", 0);
    return end(at.slot < 0 ? NOT_SUPPORTED : SUCCESS);
}

int nvmlDeviceGetAttributes_v2(device handle, attributes *answer) {
    FIND(nvmlDeviceGetAttributes_v2, handle);
    if (at.slot < 0) return end(NOT_SUPPORTED);
    memset(answer, 0, sizeof *answer);
    answer->slices = (uint)number(at.it, "slices", 1);
    answer->compute = (uint)number(at.it, "compute_slices", answer->slices);
    answer->mebibytes = amount(at.it, "memory_total_bytes") >> 20;
    return end(SUCCESS);
}

enum { COMPUTE, GRAPHICS, MPS };

static int collect(const place *at, const node *owner, int slot, int mode, detail *out, int count) {
    const node *processes = member(owner, "processes");
    for (int position = 0; position < length(processes) && count < 256; position++) {
        const node *one = element(processes, position);
        int is = truth(one, "mps") ? MPS : truth(one, "graphics") ? GRAPHICS : COMPUTE;
        if (is != mode) continue;
        const node *mig = slot < 0 ? NULL : mig_in(at->gpu, slot);
        out[count].pid = (uint)number(one, "pid", 0);
        out[count].memory = has(one, "memory_bytes") ? amount(one, "memory_bytes") : ~0ull;
        out[count].gpu_instance = mig ? (uint)number(mig, "gpu_instance", slot + 1) : ~0u;
        out[count].compute_instance = mig ? (uint)number(mig, "compute_instance", 0) : ~0u;
        out[count++].sealed = 0;
    }
    return count;
}

/* A GPU lists what runs on its MIG devices too; a MIG device lists its own. */
static int all(const place *at, int mode, detail *out) {
    int count = collect(at, at->it, at->slot, mode, out, 0);
    for (int slot = 0; at->slot < 0 && slot < 7; slot++)
        count = collect(at, mig_in(at->gpu, slot), slot, mode, out, count);
    return count;
}

/* Fill `size` bytes an entry; with too little room say how much is needed. */
static int processes(const char *name, device handle, int mode, size_t size, uint *count, char *out) {
    place at;
    detail found[256];
    int code = begin(name, 1);
    if (!code) code = find(name, handle, &at);
    if (code) return end(code);
    uint needed = (uint)all(&at, mode, found);
    int fits = *count >= needed;
    *count = needed;
    if (!fits) return end(INSUFFICIENT_SIZE);
    for (uint position = 0; out && position < needed; position++)
        memcpy(out + position * size, &found[position], size);
    return end(SUCCESS);
}

#define PROCESSES(name, mode, type) \
    int name(device handle, uint *count, void *out) { \
        return processes(#name, handle, mode, sizeof(type), count, out); \
    }
PROCESSES(nvmlDeviceGetComputeRunningProcesses, COMPUTE, process_v1)
PROCESSES(nvmlDeviceGetComputeRunningProcesses_v2, COMPUTE, process_v2)
PROCESSES(nvmlDeviceGetGraphicsRunningProcesses, GRAPHICS, process_v1)
PROCESSES(nvmlDeviceGetGraphicsRunningProcesses_v2, GRAPHICS, process_v2)
PROCESSES(nvmlDeviceGetMPSComputeRunningProcesses, MPS, process_v1)
PROCESSES(nvmlDeviceGetMPSComputeRunningProcesses_v2, MPS, process_v2)
#ifndef OLD_DRIVER
PROCESSES(nvmlDeviceGetComputeRunningProcesses_v3, COMPUTE, process_v2)
PROCESSES(nvmlDeviceGetGraphicsRunningProcesses_v3, GRAPHICS, process_v2)
PROCESSES(nvmlDeviceGetMPSComputeRunningProcesses_v3, MPS, process_v2)

int nvmlDeviceGetRunningProcessDetailList(device handle, detail_list *list) {
    FIND(nvmlDeviceGetRunningProcessDetailList, handle);
    if (list->version != VERSION(detail_list, 1)) return end(ARGUMENT_VERSION_MISMATCH);
    detail found[256];
    uint needed = (uint)all(&at, (int)list->mode, found);
    int fits = list->count >= needed;
    list->count = needed;
    if (!fits) return end(INSUFFICIENT_SIZE);
    if (needed) memcpy(list->details, found, needed * sizeof(detail));
    return end(SUCCESS);
}
#endif
