#define _GNU_SOURCE
#include "nvml_calls.h"

#include <unistd.h>

int users;

/* Whether an error list's key speaks of this function: by its name, or without its version. */
static int speaks_of(const char *key, const char *name) {
    size_t size = strlen(key);
    if (strncmp(key, name, size)) return 0;
    const char *rest = name + size;
    return !*rest || !strcmp(rest, "WithFlags") || (!strncmp(rest, "_v", 2) && strlen(rest) == 3);
}

int told(const node *holder, const char *name) {
    const node *errors = member(holder, "errors");
    for (const node *one = errors ? errors->first : NULL; one; one = one->next)
        if (speaks_of(one->key, name)) return atoi(one->text);
    return (int)number(errors, "*", 0);
}

static useconds_t delay_of(const char *name) {
    const node *delays = machine() ? member(machine(), "delays_ms") : NULL;
    for (const node *one = delays ? delays->first : NULL; one; one = one->next)
        if (speaks_of(one->key, name)) return (useconds_t)(1000 * strtod(one->text, NULL));
    return 0;
}

int begin(const char *name, int needs_init) {
    lock();
    useconds_t delay = delay_of(name);
    if (delay) {
        unlock();
        usleep(delay);
        lock();
    }
    if (!machine()) return DRIVER_NOT_LOADED;
    if (lists(machine(), "missing", name)) return FUNCTION_NOT_FOUND;
    if (needs_init && !users) return UNINITIALIZED;
    return told(machine(), name);
}

int end(int code) {
    unlock();
    return code;
}

device handle_of(int index, int slot) {
    return (device)(uintptr_t)(0x10000 + index * 0x100 + slot + 1);
}

const node *mig_in(const node *gpu, int slot) {
    const node *migs = member(gpu, "mig");
    for (int position = 0; position < length(migs); position++)
        if ((int)number(element(migs, position), "slot", position) == slot)
            return element(migs, position);
    return NULL;
}

int find(const char *name, device handle, place *found) {
    intptr_t value = (intptr_t)handle - 0x10000;
    if (value < 0 || value > 0xFFFFF) return INVALID_ARGUMENT;
    found->index = (int)(value / 0x100);
    found->slot = (int)(value % 0x100) - 1;
    found->gpu = element(member(machine(), "gpus"), found->index);
    if (!found->gpu) return GPU_IS_LOST; /* It was there when the handle was made: unplugged. */
    found->it = found->slot < 0 ? found->gpu : mig_in(found->gpu, found->slot);
    if (!found->it) return INVALID_ARGUMENT;
    int code = found->slot < 0 ? 0 : told(found->it, name);
    return code ? code : told(found->gpu, name);
}

int put(const char *text, char *buffer, uint size) {
    if (!text) return UNKNOWN;
    if (strlen(text) >= size) return INSUFFICIENT_SIZE;
    strcpy(buffer, text);
    return SUCCESS;
}

bytes amount(const node *it, const char *key) { return (bytes)number(it, key, 0); }
