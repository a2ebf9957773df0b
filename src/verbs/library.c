/* SPDX-License-Identifier: MIT
 *
 * Loads the verbs library at run time. weft is not linked with the library, because most machines, and macOS before 26.2, do not have it.
 */
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "verbs/verbs.h"

#if defined(__APPLE__)
static const char *const names[] = {"librdma.dylib", "/usr/lib/librdma.dylib"};
#define WHO_HAS_IT "macOS has it from version 26.2 on"
#else
static const char *const names[] = {"libibverbs.so.1", "libibverbs.so"};
#define WHO_HAS_IT "install it (Debian, Ubuntu: libibverbs1 and ibverbs-providers; Fedora: libibverbs)"
#endif
#define NAMES (sizeof names / sizeof names[0])

static const struct symbol {
    const char *name;
    size_t at;
    bool optional;
} symbols[] = {
#define NEEDED(field)                                               \
    {                                                               \
        "ibv_" #field, offsetof(struct verbs_library, field), false \
    }
#define OPTIONAL(field)                                            \
    {                                                              \
        "ibv_" #field, offsetof(struct verbs_library, field), true \
    }
    NEEDED(get_device_list),
    NEEDED(free_device_list),
    NEEDED(get_device_name),
    NEEDED(open_device),
    NEEDED(close_device),
    NEEDED(query_device),
    NEEDED(query_port),
    NEEDED(query_gid),
    {"_ibv_query_gid_ex", offsetof(struct verbs_library, query_gid_ex), true},
    NEEDED(alloc_pd),
    NEEDED(dealloc_pd),
    NEEDED(reg_mr),
    OPTIONAL(reg_dmabuf_mr),
    NEEDED(dereg_mr),
    NEEDED(create_comp_channel),
    NEEDED(destroy_comp_channel),
    NEEDED(get_cq_event),
    NEEDED(ack_cq_events),
    NEEDED(create_cq),
    NEEDED(destroy_cq),
    OPTIONAL(create_srq),
    OPTIONAL(destroy_srq),
    NEEDED(create_qp),
    NEEDED(query_qp),
    NEEDED(modify_qp),
    NEEDED(destroy_qp),
    NEEDED(get_async_event),
    NEEDED(ack_async_event),
    NEEDED(wc_status_str),
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct verbs_library library; /* protected by the lock until it is loaded; constant afterwards */
static bool loaded;

/* Uses memcpy(), because ISO C cannot convert the result of dlsym() to a pointer to a function. */
static int library_fill(struct verbs_library *to, void *handle)
{
    for (size_t i = 0; i < sizeof symbols / sizeof symbols[0]; i++) {
        void *found = dlsym(handle, symbols[i].name);
        if (!found && !symbols[i].optional)
            return base_fail(-ENOENT, "%s has no %s, so it is not a verbs library, or is too old: " WHO_HAS_IT, to->path, symbols[i].name);
        memcpy((char *)to + symbols[i].at, &found, sizeof found);
    }
    return 0;
}

static int library_load(void)
{
    struct verbs_library l = {0};
    const char *chosen = getenv("WEFT_VERBS_LIBRARY");
    const char *said = NULL;
    void *handle = NULL;
    char tried[128] = "";
    if (chosen && *chosen) {
        snprintf(l.path, sizeof l.path, "%s", chosen);
        if (strlen(chosen) >= sizeof l.path)
            return base_fail(-ENAMETOOLONG, "WEFT_VERBS_LIBRARY is longer than %zu bytes; use a shorter path", sizeof l.path - 1);
        handle = dlopen(chosen, RTLD_NOW | RTLD_LOCAL);
        if (!handle) {
            said = dlerror();
            return base_fail(
                -ENOENT, "the verbs library that WEFT_VERBS_LIBRARY names cannot be loaded: %s; correct the path, or unset the variable",
                said ? said : chosen);
        }
    }
    char first[256] = "";
    for (size_t i = 0; !handle && i < NAMES; i++) {
        snprintf(l.path, sizeof l.path, "%s", names[i]);
        handle = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
        if (handle)
            break;
        said = dlerror();
        if (i == 0)
            snprintf(first, sizeof first, "%s", said ? said : "no reason given");
        size_t n = strlen(tried);
        snprintf(tried + n, sizeof tried - n, "%s%s", i ? ", " : "", names[i]);
    }
    if (!handle)
        return base_fail(-ENOENT, "no verbs library (tried %s: %s); " WHO_HAS_IT, tried, first);
    int rc = library_fill(&l, handle);
    if (rc) {
        dlclose(handle);
        return rc;
    }
    library = l; /* never unloaded, because threads of the library may be running */
    return 0;
}

int verbs_load(const struct verbs_library **out)
{
    pthread_mutex_lock(&lock);
    int rc = loaded ? 0 : library_load();
    if (rc == 0) {
        loaded = true;
        *out = &library;
    }
    pthread_mutex_unlock(&lock);
    return rc;
}

const char *verbs_holders(const struct verbs_library *lib, struct ibv_context *context, char *out, size_t len)
{
    static const char before[] = ". The programs of its guard have: ";
    out[0] = '\0';
    if (!lib->holders || len < sizeof before)
        return out;
    lib->holders(context, out + sizeof before - 1, len - sizeof before + 1);
    if (out[sizeof before - 1])
        memcpy(out, before, sizeof before - 1);
    return out;
}

int verbs_code(int returned, bool thunderbolt, int *raw)
{
    int code = returned > 0 ? returned : errno;
    if (raw)
        *raw = code;
    if (code == 524)
        code = EOPNOTSUPP; /* ENOTSUPP is internal to the Linux kernel, but some drivers return it to programs */
    else if (thunderbolt && code == 60)
        code = ETIMEDOUT;
    else if (thunderbolt && code == 102)
        code = EOPNOTSUPP;
    return code > 0 ? -code : -EIO; /* the verb gave no reason */
}
