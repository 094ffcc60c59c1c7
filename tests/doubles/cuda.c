/* A double of libcuda.so.1: how a process sees the machine in the inventory file.
 *
 * CUDA_VISIBLE_DEVICES is read at cuInit and, once that succeeds, never again. The rules are those
 * measured on real drivers; tests/data/driver_visibility.json holds the measurements. What is not
 * measured there (MIG, lost GPUs) follows NVIDIA's documents and says so. */
#define _GNU_SOURCE
#include "inventory.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

enum {
    SUCCESS = 0, INVALID_VALUE = 1, NOT_INITIALIZED = 3, NO_DEVICE = 100, INVALID_DEVICE = 101
};

#define MOST 128

typedef struct { char uuid[96], parent[96], name[192], bus_id[32]; size_t memory; } seen_device;
typedef struct { int gpu, mig; } place; /* positions in the inventory; mig is -1 for a whole GPU */

static seen_device visible[MOST];
static int visible_count;
static int contexts[MOST];
static pid_t owner; /* the process in which cuInit succeeded, 0 before */

static const node *gpu_at(place at) { return element(member(machine(), "gpus"), at.gpu); }

static const node *node_at(place at) {
    return at.mig < 0 ? gpu_at(at) : element(member(gpu_at(at), "mig"), at.mig);
}

static int in_mig_mode(const node *gpu) {
    return has(gpu, "mig_mode") ? truth(gpu, "mig_mode") : length(member(gpu, "mig")) > 0;
}

/* A GPU that NVML cannot open either: cuInit goes on without it, so those behind it move up. */
static int broken(const node *gpu) {
    const node *errors = member(gpu, "errors");
    return has(errors, "*") || has(errors, "nvmlDeviceGetHandleByIndex");
}

static int collect(place *out, int want_mig) {
    int count = 0;
    for (int gpu = 0; gpu < length(member(machine(), "gpus")); gpu++) {
        place at = {gpu, -1};
        const node *one = gpu_at(at);
        if (broken(one)) continue;
        if (!in_mig_mode(one) && !want_mig && count < MOST) out[count++] = at;
        for (int mig = 0; in_mig_mode(one) && want_mig && mig < length(member(one, "mig")); mig++)
            if (count < MOST) out[count++] = (place){gpu, mig};
    }
    return count;
}

/* Unless CUDA_DEVICE_ORDER is PCI_BUS_ID, the fastest GPU comes first. */
static void order(place *gpus, int count) {
    const char *wanted = getenv("CUDA_DEVICE_ORDER");
    if (wanted && !strcmp(wanted, "PCI_BUS_ID")) return;
    for (int i = 1; i < count; i++)
        for (int j = i; j > 0; j--) {
            double here = number(gpu_at(gpus[j]), "speed", 0);
            if (here <= number(gpu_at(gpus[j - 1]), "speed", 0)) break;
            place other = gpus[j - 1];
            gpus[j - 1] = gpus[j];
            gpus[j] = other;
        }
}

/* The devices that plain numbers mean: whole GPUs, or where there are none the first MIG device. */
static int numbered(place *out) {
    int count = collect(out, 0);
    order(out, count);
    return count ? count : collect(out, 1) > 0;
}

/* The hexadecimal digits after the prefix, in lower case; dashes do not count. */
static void digits_of(const char *entry, char *out) {
    int count = 0;
    for (const char *at = entry + 4; (isxdigit((unsigned char)*at) || *at == '-') && count < 32; at++)
        if (*at != '-') out[count++] = (char)tolower((unsigned char)*at);
    out[count] = 0;
}

/* Find the one device whose UUID begins with these digits; `whole` asks for all 32 of them. */
static int by_digits(const char *digits, const place *from, int count, int whole, place *found) {
    int matches = 0;
    char own[33];
    for (int i = 0; i < count && (*digits || !whole); i++) {
        digits_of(string(node_at(from[i]), "uuid", "GPU-"), own);
        if (strncmp(own, digits, strlen(digits)) || (whole && strlen(own) != strlen(digits))) continue;
        matches++;
        *found = from[i];
    }
    return matches == 1;
}

/* MIG-GPU-<uuid>/<gpu instance>/<compute instance>, the form before driver 470. */
static int by_old_form(const char *entry, const place *migs, int count, place *found) {
    char digits[33], own[33];
    int gpu_instance, compute_instance;
    const char *slash = strchr(entry, '/');
    if (!slash || sscanf(slash, "/%d/%d", &gpu_instance, &compute_instance) != 2) return 0;
    digits_of(entry + 4, digits);
    for (int i = 0; i < count; i++) {
        digits_of(string(gpu_at(migs[i]), "uuid", "GPU-"), own);
        int slot = (int)number(node_at(migs[i]), "slot", migs[i].mig);
        if (strcmp(own, digits) ||
            gpu_instance != (int)number(node_at(migs[i]), "gpu_instance", slot + 1) ||
            compute_instance != (int)number(node_at(migs[i]), "compute_instance", 0))
            continue;
        *found = migs[i];
        return 1;
    }
    return 0;
}

static int by_uuid(const char *entry, place *found) {
    place gpus[MOST], migs[MOST];
    int gpu_count = collect(gpus, 0), mig_count = collect(migs, 1);
    char digits[33];
    if (!strncmp(entry, "MIG-GPU-", 8)) return by_old_form(entry, migs, mig_count, found);
    digits_of(entry, digits);
    /* A beginning counts only with nothing behind it, behind a whole UUID all may stand; dashes do
     * not count, so that GPU-- names the only GPU, but GPU- names none (all measured). */
    int bare = entry[4] && !entry[4 + strspn(entry + 4, "0123456789abcdefABCDEF-")];
    if (!strncmp(entry, "GPU-", 4)) return by_digits(digits, gpus, gpu_count, !bare, found);
    if (strncmp(entry, "MIG-", 4)) return 0;
    return by_digits(digits, migs, mig_count, 1, found) || by_digits(digits, gpus, gpu_count, 1, found);
}

/* As strtoul and a cast to int: 4294967297 is 1, 9223372036854775808 is 0 (both measured), and
 * what overflows 64 bits is -1 and ends the list. */
static int by_number(const char *entry, const place *all, int count, place *found) {
    char *rest;
    int index = (int)strtoul(entry, &rest, 10);
    if (rest == entry || index < 0 || index >= count) return 0;
    *found = all[index];
    return 1;
}

/* Fill `out` from a value; the first invalid entry ends the list. Returns cuInit's code. */
static int parse(const char *value, const place *all, int all_count, place *out, int *count) {
    int uuids = !strncmp(value, "GPU-", 4) || !strncmp(value, "MIG-", 4), code = SUCCESS;
    char *copy = strdup(value), *rest = copy, *entry;
    *count = 0;
    while (code == SUCCESS && (entry = strsep(&rest, ","))) {
        place found;
        if (!(uuids ? by_uuid(entry, &found) : by_number(entry, all, all_count, &found))) break;
        for (int i = 0; i < *count; i++)
            if (out[i].gpu == found.gpu && out[i].mig == found.mig) code = INVALID_DEVICE;
        out[(*count)++] = found;
    }
    free(copy);
    return code;
}

static void remember(place at, seen_device *device) {
    const node *it = node_at(at), *gpu = gpu_at(at);
    memset(device, 0, sizeof *device);
    snprintf(device->uuid, sizeof device->uuid, "%s", string(it, "uuid", ""));
    snprintf(device->parent, sizeof device->parent, "%s", string(gpu, "uuid", ""));
    snprintf(device->bus_id, sizeof device->bus_id, "%s", string(gpu, "pci_bus_id", ""));
    snprintf(device->name, sizeof device->name, at.mig < 0 ? "%s" : "%s MIG %s",
             string(gpu, "name", ""), string(it, "profile", ""));
    device->memory = (size_t)number(it, "memory_total_bytes", 0);
}

/* Several MIG devices in one list: the documents agree only on the first, so only it is seen. */
static int keep_certain(const place *named, int count) {
    if (count && named[0].mig >= 0) return 1;
    int kept = 0;
    while (kept < count && named[kept].mig < 0) kept++;
    return kept;
}

static int initialise(void) {
    if (!machine()) return NO_DEVICE;
    int told = (int)number(member(machine(), "errors"), "cuInit", 0);
    if (told) return told;
    place all[MOST], named[MOST];
    int all_count = numbered(all), count = all_count, code = SUCCESS;
    const char *value = getenv("CUDA_VISIBLE_DEVICES");
    memcpy(named, all, sizeof named);
    if (value) code = parse(value, all, all_count, named, &count);
    if (code) return code;
    visible_count = keep_certain(named, count);
    for (int i = 0; i < visible_count; i++) remember(named[i], &visible[i]);
    return visible_count ? SUCCESS : NO_DEVICE;
}

/* A forked child of an initialised process can never use CUDA. */
int cuInit(unsigned flags) {
    if (flags) return INVALID_VALUE;
    if (owner) return owner == getpid() ? SUCCESS : NOT_INITIALIZED;
    lock();
    int code = initialise();
    if (!code) owner = getpid();
    unlock();
    return code;
}

static int check(int ordinal) {
    if (!owner || owner != getpid()) return NOT_INITIALIZED;
    return ordinal < 0 || ordinal >= visible_count ? INVALID_DEVICE : SUCCESS;
}

int cuDriverGetVersion(int *version) {
    lock();
    *version = (int)number(machine(), "cuda", 13000);
    unlock();
    return SUCCESS;
}

int cuDeviceGetCount(int *count) {
    if (!owner || owner != getpid()) return NOT_INITIALIZED;
    *count = visible_count;
    return SUCCESS;
}

int cuDeviceGet(int *device, int ordinal) {
    int code = check(ordinal);
    if (!code) *device = ordinal;
    return code;
}

static void to_bytes(const char *uuid, unsigned char *out) {
    char digits[33] = {0};
    digits_of(uuid, digits);
    for (int i = 0; i < 16; i++) sscanf(digits + 2 * i, "%2hhx", &out[i]);
}

/* The first version answers with the whole GPU's UUID, even on a MIG device. */
int cuDeviceGetUuid(unsigned char *uuid, int device) {
    int code = check(device);
    if (!code) to_bytes(visible[device].parent, uuid);
    return code;
}

int cuDeviceGetUuid_v2(unsigned char *uuid, int device) {
    int code = check(device);
    if (!code) to_bytes(visible[device].uuid, uuid);
    return code;
}

int cuDeviceGetName(char *name, int size, int device) {
    int code = check(device);
    if (!code) snprintf(name, (size_t)size, "%s", visible[device].name);
    return code;
}

int cuDeviceGetPCIBusId(char *bus_id, int size, int device) {
    int code = check(device);
    if (!code) snprintf(bus_id, (size_t)size, "%s", visible[device].bus_id + 4);
    return code;
}

int cuDeviceTotalMem_v2(size_t *memory, int device) {
    int code = check(device);
    if (!code) *memory = visible[device].memory;
    return code;
}

int cuDeviceTotalMem(size_t *memory, int device) { return cuDeviceTotalMem_v2(memory, device); }

int cuDevicePrimaryCtxRetain(void **context, int device) {
    int code = check(device);
    if (!code) *context = &contexts[device];
    if (!code) contexts[device]++;
    return code;
}

int cuDevicePrimaryCtxRelease_v2(int device) {
    int code = check(device);
    if (!code && contexts[device]) contexts[device]--;
    return code;
}

int cuDevicePrimaryCtxGetState(int device, unsigned *flags, int *active) {
    int code = check(device);
    if (code) return code;
    *flags = 0;
    *active = contexts[device] > 0;
    return SUCCESS;
}

int cuGetErrorName(int code, const char **name) {
    *name = code ? "CUDA_ERROR_OF_THE_DOUBLE" : "CUDA_SUCCESS";
    return SUCCESS;
}

int cuGetErrorString(int code, const char **text) {
    *text = code ? "an error of the double" : "no error";
    return SUCCESS;
}
