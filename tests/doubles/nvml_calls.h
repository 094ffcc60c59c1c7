/* What every function of the NVML double begins and ends with, and nvml.h's types and codes. */
#ifndef JUPYTER_GPU_DOUBLE_NVML_CALLS_H
#define JUPYTER_GPU_DOUBLE_NVML_CALLS_H

#include "inventory.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum {
    SUCCESS = 0, UNINITIALIZED = 1, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6,
    INSUFFICIENT_SIZE = 7, DRIVER_NOT_LOADED = 9, FUNCTION_NOT_FOUND = 13, GPU_IS_LOST = 15,
    ARGUMENT_VERSION_MISMATCH = 25, UNKNOWN = 999
};

typedef unsigned int uint;
typedef unsigned long long bytes;
typedef void *device;

typedef struct { bytes total, free, used; } memory_v1;
typedef struct { uint version; bytes total, reserved, free, used; } memory_v2;
typedef struct { uint pid; bytes memory; } process_v1;
typedef struct { uint pid; bytes memory; uint gpu_instance, compute_instance; } process_v2;
typedef struct { uint pid; bytes memory; uint gpu_instance, compute_instance; bytes sealed; } detail;
typedef struct { uint version, mode, count; detail *details; } detail_list;
typedef struct { uint gpu, memory; } utilization;
typedef struct { uint version, sensor; int temperature; } temperature_v1;
typedef struct { char legacy[16]; uint domain, bus, device, id, subsystem; char bus_id[32]; } pci;
typedef struct { uint sm, copy, decoder, encoder, jpeg, ofa, slices, compute; bytes mebibytes; } attributes;

#define VERSION(type, number) ((uint)sizeof(type) | (number##u << 24))
_Static_assert(VERSION(memory_v2, 2) == 0x02000028, "nvmlMemory_v2");
_Static_assert(VERSION(temperature_v1, 1) == 0x0100000C, "nvmlTemperature_v1");
_Static_assert(VERSION(detail_list, 1) == 0x01000018, "nvmlProcessDetailList_v1");
_Static_assert(sizeof(process_v2) == 24 && sizeof(pci) == 68 && sizeof(attributes) == 40, "nvml.h");

/* How often nvmlInit was called and not undone: the real library counts too. */
extern int users;

/* A handle's device: `it` is the MIG device, or the GPU itself, whose slot is -1. */
typedef struct { const node *it, *gpu; int index, slot; } place;

/* The code that a machine, a GPU or a MIG device is told to answer with, or 0. */
int told(const node *holder, const char *name);

/* Take the lock and return the code that ends this call at once, or 0. */
int begin(const char *name, int needs_init);

/* Drop the lock and return the code. */
int end(int code);

/* A handle holds its GPU's index and, for a MIG device, its slot: it stays valid across reloads. */
device handle_of(int index, int slot);

/* Find what a handle stands for; return the code that this device is told to answer with. */
int find(const char *name, device handle, place *found);

/* The MIG device in this slot, or NULL. */
const node *mig_in(const node *gpu, int slot);

/* A number of bytes, 0 where there is none. */
bytes amount(const node *it, const char *key);

/* Copy a text into the caller's buffer. */
int put(const char *text, char *buffer, uint size);

#define BEGIN(name)                         \
    do {                                    \
        int code_ = begin(#name, 1);        \
        if (code_) return end(code_);       \
    } while (0)

#define FIND(name, handle)                              \
    place at;                                           \
    do {                                                \
        int code_ = begin(#name, 1);                    \
        if (!code_) code_ = find(#name, handle, &at);   \
        if (code_) return end(code_);                   \
    } while (0)

#endif
