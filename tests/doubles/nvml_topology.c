/* How the GPUs are connected, and what is near each of them. */
#define _GNU_SOURCE
#include "nvml_calls.h"

#include <stdio.h>

enum { READ, WRITE, NVLINK };                /* nvmlGpuP2PCapsIndex_t */
enum { P2P_OK = 0, P2P_NOT_SUPPORTED = 5 };  /* nvmlGpuP2PStatus_t */
enum { TO_GPU = 0, TO_SWITCH = 2, TO_UNKNOWN = 255 };
enum { WORD = 8 * sizeof(unsigned long) };

/* The far end of an NVLink: a GPU's index, "switch", "unknown", or null where it is not active. */
static const node *lane(const node *gpu, int position) {
    return element(member(gpu, "nvlinks"), position);
}

static int leads_to(const node *far, int index) {
    return far && far->kind == '0' && atoi(far->text) == index;
}

static int is(const node *far, const char *word) {
    return far && far->kind == '"' && !strcmp(far->text, word);
}

/* Whether an NVLink of a GPU leads to the other one, or to a switch. */
static int reaches(const node *gpu, int other) {
    int through_switch = 0;
    for (int position = 0; position < length(member(gpu, "nvlinks")); position++) {
        if (leads_to(lane(gpu, position), other)) return 1;
        through_switch |= is(lane(gpu, position), "switch");
    }
    return through_switch;
}

static int find_pair(const char *name, device one, device other, place *first, place *second) {
    int code = begin(name, 1);
    if (!code) code = find(name, one, first);
    if (!code) code = find(name, other, second);
    return code;
}

static int key_of(char *key, size_t size, int index) { return snprintf(key, size, "%d", index); }

int nvmlDeviceGetTopologyCommonAncestor(device one, device other, uint *level) {
    place first, second;
    char key[16];
    int code = find_pair("nvmlDeviceGetTopologyCommonAncestor", one, other, &first, &second);
    if (code) return end(code);
    key_of(key, sizeof key, second.index);
    if (has(member(first.gpu, "ancestors"), key)) {
        *level = (uint)number(member(first.gpu, "ancestors"), key, 0);
        return end(SUCCESS);
    }
    key_of(key, sizeof key, first.index);
    if (!has(member(second.gpu, "ancestors"), key)) return end(NOT_SUPPORTED);
    *level = (uint)number(member(second.gpu, "ancestors"), key, 0);
    return end(SUCCESS);
}

int nvmlDeviceGetP2PStatus(device one, device other, int capability, int *status) {
    place first, second;
    int code = find_pair("nvmlDeviceGetP2PStatus", one, other, &first, &second);
    if (code) return end(code);
    int joined = reaches(first.gpu, second.index) && reaches(second.gpu, first.index);
    *status = capability != NVLINK || joined ? P2P_OK : P2P_NOT_SUPPORTED;
    if (has(first.gpu, "p2p_status")) *status = (int)number(first.gpu, "p2p_status", P2P_OK);
    return end(SUCCESS);
}

#define FIND_LANE(name, handle, number)                            \
    FIND(name, handle);                                            \
    if (!has(at.gpu, "nvlinks")) return end(NOT_SUPPORTED);        \
    const node *far = lane(at.gpu, (int)number);                   \
    if (!far) return end(INVALID_ARGUMENT)

int nvmlDeviceGetNvLinkState(device handle, uint link, uint *active) {
    FIND_LANE(nvmlDeviceGetNvLinkState, handle, link);
    *active = far->kind != 'n';
    return end(SUCCESS);
}

int nvmlDeviceGetNvLinkRemoteDeviceType(device handle, uint link, int *type) {
    FIND_LANE(nvmlDeviceGetNvLinkRemoteDeviceType, handle, link);
    *type = is(far, "switch") ? TO_SWITCH : far->kind == '0' ? TO_GPU : TO_UNKNOWN;
    return end(SUCCESS);
}

int nvmlDeviceGetNvLinkRemotePciInfo_v2(device handle, uint link, pci *answer) {
    FIND_LANE(nvmlDeviceGetNvLinkRemotePciInfo_v2, handle, link);
    if (far->kind != '0') return end(NOT_SUPPORTED);
    const node *other = element(member(machine(), "gpus"), atoi(far->text));
    memset(answer, 0, sizeof *answer);
    /* In lower case and with the short domain, unlike nvmlDeviceGetPciInfo. */
    const char *bus_id = string(other, "pci_bus_id", "");
    snprintf(answer->bus_id, sizeof answer->bus_id, "%s", strlen(bus_id) == 16 ? bus_id + 4 : bus_id);
    for (char *letter = answer->bus_id; *letter; letter++)
        if (*letter >= 'A' && *letter <= 'F') *letter += 'a' - 'A';
    return end(SUCCESS);
}

/* Set the bits that a list of numbers names. */
static int mask(const node *numbers, uint size, unsigned long *words) {
    if (!numbers) return NOT_SUPPORTED;
    memset(words, 0, size * sizeof *words);
    for (int position = 0; position < length(numbers); position++) {
        uint bit = (uint)atoi(element(numbers, position)->text);
        if (bit / WORD >= size) return INSUFFICIENT_SIZE;
        words[bit / WORD] |= 1ul << bit % WORD;
    }
    return SUCCESS;
}

int nvmlDeviceGetCpuAffinity(device handle, uint size, unsigned long *words) {
    FIND(nvmlDeviceGetCpuAffinity, handle);
    return end(mask(member(at.gpu, "cpus"), size, words));
}

int nvmlDeviceGetMemoryAffinity(device handle, uint size, unsigned long *words, uint scope) {
    FIND(nvmlDeviceGetMemoryAffinity, handle);
    if (scope > 1) return end(INVALID_ARGUMENT);
    return end(mask(member(at.gpu, "memory_nodes"), size, words));
}
