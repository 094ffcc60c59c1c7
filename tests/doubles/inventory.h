/* The inventory file of the doubles: a JSON document that is read again whenever it changes.
 *
 * The environment variable JUPYTER_GPU_DOUBLE names the file. Its keys are described in
 * tests/doubles/__init__.py. Both libraries compile this file in, so both see the same machine. */
#ifndef JUPYTER_GPU_DOUBLE_INVENTORY_H
#define JUPYTER_GPU_DOUBLE_INVENTORY_H

typedef struct node node;
struct node {
    char kind;    /* one of { [ " 0 t f n: object, array, string, number, true, false, null */
    char *key;    /* the member's name inside an object */
    char *text;   /* a string's characters, or a number's digits */
    node *first;  /* the first member or element */
    node *next;   /* the next sibling */
};

/* Return the machine as it is now, or NULL without a readable file. Call with the lock held; the
 * tree lives until the next call. */
const node *machine(void);

void lock(void);
void unlock(void);

const node *member(const node *object, const char *key);
const node *element(const node *array, int position);
int length(const node *array);

/* The value of a member, or the fallback where it is absent or null. */
double number(const node *object, const char *key, double fallback);
const char *string(const node *object, const char *key, const char *fallback);
int truth(const node *object, const char *key);
int has(const node *object, const char *key);

/* Whether an array member holds this string. */
int lists(const node *object, const char *key, const char *text);

#endif
