/* SPDX-License-Identifier: MIT
 *
 * Finds kernels by name: built-in ones, those added by the program, and those in shared objects.
 */
#include "kernel/kernel.h"

#include <dlfcn.h>
#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#define ADDED_MAX 64u
#define BYTES_MAX 4096u /* larger: the symbol is probably not a weft_kernel */

static const weft_kernel *const built_in[] = {&kernel_wc, &kernel_histogram, &kernel_xxh64, &kernel_grep};
#define BUILT_IN (sizeof built_in / sizeof built_in[0])

static base_spin adding;
static const weft_kernel *added[ADDED_MAX];
static _Atomic uint32_t added_count; /* stored with release after a kernel was added; pairs with the acquire in at() */

static const weft_kernel *at(size_t i)
{
    uint32_t more = atomic_load_explicit(&added_count, memory_order_acquire);
    return i < BUILT_IN ? built_in[i] : i - BUILT_IN < more ? added[i - BUILT_IN] : NULL;
}

/* Checks a kernel's fields. A kernel built with an older version of weft lacks the later fields. */
static int kernel_check(const weft_kernel *k)
{
    if (k->bytes < offsetof(weft_kernel, finish) + sizeof k->finish || k->bytes > BYTES_MAX)
        return base_fail(-EINVAL, "weft_kernel.bytes is %zu: set it to sizeof(weft_kernel)", k->bytes);
    if (!k->name || !k->name[0] || strchr(k->name, ':'))
        return base_fail(-EINVAL, "weft_kernel.name must not be NULL or empty, and must not have a colon");
    if (!k->help || !k->run || (k->fold && (!k->finish || !k->state_bytes)) || (!k->fold && k->finish))
        return base_fail(-EINVAL, "kernel %s: set help and run, and either all of fold, finish and state_bytes or none", k->name);
    return 0;
}

int weft_kernel_register(const weft_kernel *kernel)
{
    int rc = kernel_check(kernel);
    if (rc)
        return rc;
    base_spin_lock(&adding);
    uint32_t n = atomic_load_explicit(&added_count, memory_order_relaxed);
    if (weft_kernel_find(kernel->name)) {
        rc = base_fail(-EEXIST, "kernel %s: that name is taken: choose another", kernel->name);
    } else if (n == ADDED_MAX) {
        rc = base_fail(-ENOSPC, "kernel %s: this process has registered %u kernels, which is the most: register fewer", kernel->name,
                       ADDED_MAX);
    } else {
        added[n] = kernel;
        atomic_store_explicit(&added_count, n + 1, memory_order_release);
    }
    base_spin_unlock(&adding);
    return rc;
}

int weft_kernel_load(const char *file, const char *name, const weft_kernel **out)
{
    char path[4096];
    /* Add a slash: dlopen() would search the system's directories for a name without a slash. */
    int n = snprintf(path, sizeof path, "%s%s", strchr(file, '/') ? "" : "./", file);
    if (n < 0 || (size_t)n >= sizeof path)
        return base_fail(-ENAMETOOLONG, "kernel %s: the path of its shared object is too long; use a shorter one", name);
    void *object = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!object)
        return base_fail(-ENOENT, "kernel %s: %s", name, dlerror());
    const weft_kernel *k = dlsym(object, name);
    int rc =
        k ? kernel_check(k)
          : base_fail(-ENOENT, "%s exports no kernel with the name %s: declare the kernel there as WEFT_API extern const weft_kernel %s",
                      file, name, name);
    if (rc) {
        dlclose(object);
        return k ? base_context(rc, "%s", file) : rc;
    }
    *out = k;
    return 0;
}

const weft_kernel *weft_kernel_find(const char *name)
{
    const weft_kernel *k;
    for (size_t i = 0; (k = at(i)) != NULL; i++)
        if (strcmp(k->name, name) == 0)
            return k;
    return NULL;
}

const weft_kernel *weft_kernel_next(const weft_kernel *after)
{
    const weft_kernel *k;
    for (size_t i = 0; after && (k = at(i)) != NULL; i++)
        if (k == after)
            return at(i + 1);
    return after ? NULL : at(0);
}
