#define _GNU_SOURCE
#include "inventory.h"

#include <ctype.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static node *tree;
static struct stat seen;
static char seen_path[4096];

void lock(void) { pthread_mutex_lock(&mutex); }
void unlock(void) { pthread_mutex_unlock(&mutex); }

static void release(node *one) {
    while (one) {
        node *next = one->next;
        release(one->first);
        free(one->key);
        free(one->text);
        free(one);
        one = next;
    }
}

static const char *blank(const char *at) {
    while (isspace((unsigned char)*at)) at++;
    return at;
}

static int four_digits(const char *at) {
    char digits[5] = {0};
    strncpy(digits, at, 4);
    return (int)strtol(digits, NULL, 16);
}

/* Read a string after its opening quote; \u escapes become UTF-8, surrogates a question mark. */
static const char *read_text(const char *at, char **text) {
    char *out = *text = malloc(strlen(at) + 1);
    while (*at && *at != '"') {
        if (*at != '\\') {
            *out++ = *at++;
            continue;
        }
        char escape = at[1];
        if (!escape) break;
        at += 2;
        if (escape == 'u') {
            int code = four_digits(at);
            at += strlen(at) < 4 ? strlen(at) : 4;
            if (code < 0x80) {
                *out++ = (char)code;
            } else if (code < 0x800) {
                *out++ = (char)(0xC0 | code >> 6);
                *out++ = (char)(0x80 | (code & 0x3F));
            } else {
                *out++ = '?';
            }
        } else {
            const char *from = "nrtbf", *to = "\n\r\t\b\f", *known = strchr(from, escape);
            *out++ = known ? to[known - from] : escape;
        }
    }
    *out = 0;
    return *at ? at + 1 : at;
}

static const char *read_node(const char *at, node **result);

static const char *read_members(const char *at, node *parent, char close) {
    node **last = &parent->first;
    at = blank(at + 1);
    while (*at && *at != close) {
        char *key = NULL;
        if (close == '}') {
            at = read_text(at + 1, &key);
            at = blank(at);
            at = blank(*at == ':' ? at + 1 : at);
        }
        node *child = NULL;
        at = blank(read_node(at, &child));
        child->key = key;
        *last = child;
        last = &child->next;
        if (*at == ',') at = blank(at + 1);
    }
    return *at ? at + 1 : at;
}

static const char *read_node(const char *at, node **result) {
    node *one = *result = calloc(1, sizeof *one);
    one->kind = *at;
    if (*at == '{') return read_members(at, one, '}');
    if (*at == '[') return read_members(at, one, ']');
    if (*at == '"') return read_text(at + 1, &one->text);
    size_t size = strspn(at, "+-.0123456789abcdefghijklmnopqrstuvwxyzE");
    if (!size) return at + strlen(at); /* Not JSON: the rest of the file counts for nothing. */
    one->text = strndup(at, size);
    if (!isalpha((unsigned char)*at)) one->kind = '0';
    return at + size;
}

static char *contents(const char *path) {
    int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0) return NULL;
    size_t size = 0, room = 1 << 16;
    char *text = malloc(room + 1);
    ssize_t got;
    while ((got = read(file, text + size, room - size)) > 0) {
        size += (size_t)got;
        if (size == room) text = realloc(text, (room *= 2) + 1);
    }
    close(file);
    text[size] = 0;
    return text;
}

static int same_file(const struct stat *now, const char *path) {
    return tree && !strcmp(path, seen_path) && now->st_ino == seen.st_ino &&
           now->st_size == seen.st_size && now->st_mtim.tv_sec == seen.st_mtim.tv_sec &&
           now->st_mtim.tv_nsec == seen.st_mtim.tv_nsec;
}

const node *machine(void) {
    const char *path = getenv("JUPYTER_GPU_DOUBLE");
    struct stat now;
    if (!path || strlen(path) >= sizeof seen_path || stat(path, &now)) return NULL;
    if (same_file(&now, path)) return tree;
    char *text = contents(path);
    if (!text) return NULL;
    release(tree);
    read_node(blank(text), &tree);
    free(text);
    seen = now;
    strcpy(seen_path, path);
    return tree;
}

const node *member(const node *object, const char *key) {
    if (!object || object->kind != '{') return NULL;
    for (const node *one = object->first; one; one = one->next)
        if (!strcmp(one->key, key)) return one;
    return NULL;
}

const node *element(const node *array, int position) {
    if (!array || array->kind != '[' || position < 0) return NULL;
    const node *one = array->first;
    while (one && position--) one = one->next;
    return one;
}

int length(const node *array) {
    int count = 0;
    if (array && array->kind == '[')
        for (const node *one = array->first; one; one = one->next) count++;
    return count;
}

double number(const node *object, const char *key, double fallback) {
    const node *one = member(object, key);
    return one && one->kind == '0' ? strtod(one->text, NULL) : fallback;
}

const char *string(const node *object, const char *key, const char *fallback) {
    const node *one = member(object, key);
    return one && one->kind == '"' ? one->text : fallback;
}

int truth(const node *object, const char *key) {
    const node *one = member(object, key);
    return one && (one->kind == 't' || (one->kind == '0' && strtod(one->text, NULL) != 0));
}

int has(const node *object, const char *key) {
    const node *one = member(object, key);
    return one && one->kind != 'n';
}

int lists(const node *object, const char *key, const char *text) {
    const node *array = member(object, key);
    for (int position = 0; position < length(array); position++)
        if (!strcmp(element(array, position)->text ? element(array, position)->text : "", text)) return 1;
    return 0;
}
