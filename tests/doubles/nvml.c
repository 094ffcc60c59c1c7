/* A double of libnvidia-ml.so.1 that reports the machine in the inventory file.
 *
 * Signatures, struct layouts and codes are those of NVIDIA's nvml.h; only what the tests' readers
 * ask (nvidia-ml-py, gpustat, nvitop, torch) is answered, the rest is NOT_SUPPORTED. Compiled with
 * -DOLD_DRIVER it lacks the functions that came with the drivers 510 and later. */
#define _GNU_SOURCE
#include "nvml_calls.h"

#include <stdio.h>
#include <strings.h>

/* Answer with a number that the inventory may leave out, scaled. */
static int give(const place *at, const char *key, double scale, uint *answer) {
    if (!has(at->it, key)) return NOT_SUPPORTED;
    *answer = (uint)(scale * number(at->it, key, 0) + 0.5);
    return SUCCESS;
}

static int init(const char *name) {
    int code = begin(name, 0);
    if (!code) users++;
    return end(code);
}

int nvmlInit(void) { return init("nvmlInit"); }
int nvmlInit_v2(void) { return init("nvmlInit_v2"); }
int nvmlInitWithFlags(uint flags) { (void)flags; return init("nvmlInitWithFlags"); }

int nvmlShutdown(void) {
    BEGIN(nvmlShutdown);
    users--;
    return end(SUCCESS);
}

const char *nvmlErrorString(int code) {
    static __thread char text[32];
    snprintf(text, sizeof text, "double: code %d", code);
    return text;
}

int nvmlSystemGetDriverVersion(char *version, uint size) {
    BEGIN(nvmlSystemGetDriverVersion);
    return end(put(string(machine(), "driver", "580.95.05"), version, size));
}

int nvmlSystemGetNVMLVersion(char *version, uint size) {
    BEGIN(nvmlSystemGetNVMLVersion);
    return end(put("13.580.95.05", version, size));
}

int nvmlSystemGetCudaDriverVersion(int *version) {
    BEGIN(nvmlSystemGetCudaDriverVersion);
    *version = (int)number(machine(), "cuda", 13000);
    return end(SUCCESS);
}

int nvmlSystemGetCudaDriverVersion_v2(int *version) {
    BEGIN(nvmlSystemGetCudaDriverVersion_v2);
    *version = (int)number(machine(), "cuda", 13000);
    return end(SUCCESS);
}

static int count_gpus(const char *name, uint *count) {
    int code = begin(name, 1);
    if (!code) *count = (uint)length(member(machine(), "gpus"));
    return end(code);
}

int nvmlDeviceGetCount(uint *count) { return count_gpus("nvmlDeviceGetCount", count); }
int nvmlDeviceGetCount_v2(uint *count) { return count_gpus("nvmlDeviceGetCount_v2", count); }

/* The code at which a look-up of this GPU fails; "*" means its properties, not its handle. */
static int refused(const node *gpu) {
    const node *errors = member(gpu, "errors");
    return (int)number(errors, "nvmlDeviceGetHandleByIndex", 0);
}

static int by_index(const char *name, uint index, device *handle) {
    int code = begin(name, 1);
    const node *gpu = code ? NULL : element(member(machine(), "gpus"), (int)index);
    if (!code && !gpu) code = INVALID_ARGUMENT;
    if (!code) code = refused(gpu);
    if (!code) *handle = handle_of((int)index, -1);
    return end(code);
}

int nvmlDeviceGetHandleByIndex(uint index, device *handle) {
    return by_index("nvmlDeviceGetHandleByIndex", index, handle);
}
int nvmlDeviceGetHandleByIndex_v2(uint index, device *handle) {
    return by_index("nvmlDeviceGetHandleByIndex_v2", index, handle);
}

/* Only the exact UUID counts, and a lost GPU on the way breaks the look-up of healthy ones. */
int nvmlDeviceGetHandleByUUID(const char *uuid, device *handle) {
    BEGIN(nvmlDeviceGetHandleByUUID);
    const node *gpus = member(machine(), "gpus");
    for (int index = 0; index < length(gpus); index++) {
        const node *gpu = element(gpus, index), *migs = member(gpu, "mig");
        int lost = told(gpu, "nvmlDeviceGetUUID");
        if (lost) return end(lost);
        const char *own = string(gpu, "uuid", "");
        if (!strcmp(uuid, own) || (strlen(own) > 4 && !strcmp(uuid, own + 4))) {
            *handle = handle_of(index, -1);
            return end(refused(gpu));
        }
        for (int position = 0; position < length(migs); position++) {
            const node *mig = element(migs, position);
            if (strcmp(uuid, string(mig, "uuid", ""))) continue;
            *handle = handle_of(index, (int)number(mig, "slot", position));
            return end(SUCCESS);
        }
    }
    return end(NOT_FOUND);
}

int nvmlDeviceGetHandleByPciBusId_v2(const char *bus_id, device *handle) {
    BEGIN(nvmlDeviceGetHandleByPciBusId_v2);
    const node *gpus = member(machine(), "gpus");
    for (int index = 0; index < length(gpus); index++) {
        if (strcasecmp(bus_id, string(element(gpus, index), "pci_bus_id", ""))) continue;
        *handle = handle_of(index, -1);
        return end(refused(element(gpus, index)));
    }
    return end(NOT_FOUND);
}

int nvmlDeviceGetUUID(device handle, char *uuid, uint size) {
    FIND(nvmlDeviceGetUUID, handle);
    return end(put(string(at.it, "uuid", NULL), uuid, size));
}

int nvmlDeviceGetName(device handle, char *name, uint size) {
    FIND(nvmlDeviceGetName, handle);
    char made[256];
    snprintf(made, sizeof made, "%s MIG %s", string(at.gpu, "name", ""), string(at.it, "profile", ""));
    return end(put(string(at.it, "name", at.slot < 0 ? NULL : made), name, size));
}

int nvmlDeviceGetIndex(device handle, uint *index) {
    FIND(nvmlDeviceGetIndex, handle);
    *index = (uint)(at.slot < 0 ? at.index : at.slot);
    return end(SUCCESS);
}

int nvmlDeviceGetMinorNumber(device handle, uint *minor) {
    FIND(nvmlDeviceGetMinorNumber, handle);
    if (at.slot >= 0) return end(NOT_SUPPORTED);
    *minor = (uint)number(at.gpu, "minor", at.index);
    return end(SUCCESS);
}

static int tell_pci(const place *at, pci *answer) {
    const char *bus_id = string(at->gpu, "pci_bus_id", NULL);
    if (!bus_id) return NOT_SUPPORTED;
    memset(answer, 0, sizeof *answer);
    sscanf(bus_id, "%x:%x:%x", &answer->domain, &answer->bus, &answer->device);
    snprintf(answer->legacy, sizeof answer->legacy, "%04X:%02X:%02X.0", answer->domain & 0xFFFF,
             answer->bus & 0xFF, answer->device & 0xFF);
    snprintf(answer->bus_id, sizeof answer->bus_id, "%s", bus_id);
    answer->id = 0x233510DE;
    return SUCCESS;
}

int nvmlDeviceGetPciInfo_v3(device handle, pci *answer) {
    FIND(nvmlDeviceGetPciInfo_v3, handle);
    return end(tell_pci(&at, answer));
}

int nvmlDeviceGetPciInfo_v2(device handle, pci *answer) {
    FIND(nvmlDeviceGetPciInfo_v2, handle);
    return end(tell_pci(&at, answer));
}

int nvmlDeviceGetCudaComputeCapability(device handle, int *major, int *minor) {
    FIND(nvmlDeviceGetCudaComputeCapability, handle);
    *major = 9;
    *minor = 0;
    return end(SUCCESS);
}

int nvmlDeviceGetComputeMode(device handle, uint *mode) {
    FIND(nvmlDeviceGetComputeMode, handle);
    *mode = (uint)number(at.gpu, "compute_mode", 0);
    return end(SUCCESS);
}

int nvmlDeviceGetDisplayActive(device handle, uint *active) {
    FIND(nvmlDeviceGetDisplayActive, handle);
    *active = (uint)truth(at.gpu, "display");
    return end(at.slot < 0 ? SUCCESS : NOT_SUPPORTED);
}

int nvmlDeviceGetDisplayMode(device handle, uint *mode) {
    FIND(nvmlDeviceGetDisplayMode, handle);
    *mode = (uint)truth(at.gpu, "display");
    return end(at.slot < 0 ? SUCCESS : NOT_SUPPORTED);
}

int nvmlDeviceGetPersistenceMode(device handle, uint *mode) {
    FIND(nvmlDeviceGetPersistenceMode, handle);
    *mode = 1;
    return end(SUCCESS);
}

/* Version 1 counts what the driver reserves as used. */
int nvmlDeviceGetMemoryInfo(device handle, memory_v1 *memory) {
    FIND(nvmlDeviceGetMemoryInfo, handle);
    if (!has(at.it, "memory_total_bytes")) return end(NOT_SUPPORTED);
    memory->total = amount(at.it, "memory_total_bytes");
    memory->used = amount(at.it, "memory_used_bytes") + amount(at.it, "memory_reserved_bytes");
    memory->free = memory->total - memory->used;
    return end(SUCCESS);
}

#ifndef OLD_DRIVER
int nvmlDeviceGetMemoryInfo_v2(device handle, memory_v2 *memory) {
    FIND(nvmlDeviceGetMemoryInfo_v2, handle);
    if (memory->version != VERSION(memory_v2, 2)) return end(ARGUMENT_VERSION_MISMATCH);
    if (!has(at.it, "memory_total_bytes")) return end(NOT_SUPPORTED);
    memory->total = amount(at.it, "memory_total_bytes");
    memory->reserved = amount(at.it, "memory_reserved_bytes");
    memory->used = amount(at.it, "memory_used_bytes");
    memory->free = memory->total - memory->used - memory->reserved;
    return end(SUCCESS);
}

int nvmlDeviceGetTemperatureV(device handle, temperature_v1 *answer) {
    FIND(nvmlDeviceGetTemperatureV, handle);
    if (answer->version != VERSION(temperature_v1, 1)) return end(ARGUMENT_VERSION_MISMATCH);
    return end(give(&at, "temperature_celsius", 1, (uint *)&answer->temperature));
}
#endif

int nvmlDeviceGetTemperature(device handle, uint sensor, uint *temperature) {
    FIND(nvmlDeviceGetTemperature, handle);
    if (sensor) return end(INVALID_ARGUMENT);
    return end(give(&at, "temperature_celsius", 1, temperature));
}

int nvmlDeviceGetUtilizationRates(device handle, utilization *rates) {
    FIND(nvmlDeviceGetUtilizationRates, handle);
    rates->memory = 0;
    return end(give(&at, "utilization_percent", 1, &rates->gpu));
}

int nvmlDeviceGetPowerUsage(device handle, uint *milliwatts) {
    FIND(nvmlDeviceGetPowerUsage, handle);
    return end(give(&at, "power_watts", 1000, milliwatts));
}

int nvmlDeviceGetEnforcedPowerLimit(device handle, uint *milliwatts) {
    FIND(nvmlDeviceGetEnforcedPowerLimit, handle);
    return end(give(&at, "power_limit_watts", 1000, milliwatts));
}

int nvmlDeviceGetPowerManagementLimit(device handle, uint *milliwatts) {
    FIND(nvmlDeviceGetPowerManagementLimit, handle);
    return end(give(&at, "power_limit_watts", 1000, milliwatts));
}

/* The counter is the whole GPU's: a MIG device has none. */
int nvmlDeviceGetTotalEnergyConsumption(device handle, bytes *millijoules) {
    FIND(nvmlDeviceGetTotalEnergyConsumption, handle);
    if (at.slot >= 0 || !has(at.it, "energy_joules")) return end(NOT_SUPPORTED);
    *millijoules = (bytes)(1000 * number(at.it, "energy_joules", 0) + 0.5);
    return end(SUCCESS);
}

/* What no test needs a number for. */
#define LACKING(name) \
    int name(void) { return NOT_SUPPORTED; }
LACKING(nvmlDeviceGetBAR1MemoryInfo)
LACKING(nvmlDeviceGetClockInfo)
LACKING(nvmlDeviceGetConfComputeMemSizeInfo)
LACKING(nvmlDeviceGetDecoderUtilization)
LACKING(nvmlDeviceGetDriverModel)
LACKING(nvmlDeviceGetDriverModel_v2)
LACKING(nvmlDeviceGetEncoderUtilization)
LACKING(nvmlDeviceGetFanSpeed)
LACKING(nvmlDeviceGetFieldValues)
LACKING(nvmlDeviceGetMaxClockInfo)
LACKING(nvmlDeviceGetNumaNodeId)
LACKING(nvmlDeviceGetPcieThroughput)
LACKING(nvmlDeviceGetPerformanceState)
LACKING(nvmlDeviceGetProcessUtilization)
LACKING(nvmlDeviceGetSerial)
LACKING(nvmlDeviceGetTotalEccErrors)
