/* SPDX-License-Identifier: MIT
 *
 * Loads libfabric at run time, so that weft also runs on systems without libfabric. Only the functions listed here are symbols of the
 * library; its other functions are in tables of its objects.
 */
#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/base.h"
#include "base/process.h"
#include "fabric/ofi/provider.h"

#if defined(__APPLE__)
static const char *const names[] = {"libfabric.1.dylib", "libfabric.dylib", "/opt/homebrew/lib/libfabric.dylib",
                                    "/usr/local/lib/libfabric.dylib"};
#define WHO_HAS_IT "install it (brew install libfabric)"
#else
static const char *const names[] = {"libfabric.so.1", "libfabric.so"};
#define WHO_HAS_IT "install it (Debian, Ubuntu: libfabric1; Fedora: libfabric)"
#endif
#define NAMES (sizeof names / sizeof names[0])

static const struct symbol {
    const char *name;
    size_t at;
} symbols[] = {
#define SYMBOL(field)                                     \
    {                                                     \
        "fi_" #field, offsetof(struct ofi_library, field) \
    }
    SYMBOL(version), SYMBOL(getinfo), SYMBOL(freeinfo), SYMBOL(dupinfo), SYMBOL(fabric), SYMBOL(strerror),
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct ofi_library library; /* protected by the lock until `loaded`; constant afterwards */
static bool loaded;

/* The pointers are copied as bytes, because ISO C has no conversion from the result of dlsym() to a function pointer. */
static int library_fill(struct ofi_library *to, void *handle)
{
    Dl_info file;
    for (size_t i = 0; i < sizeof symbols / sizeof symbols[0]; i++) {
        void *found = dlsym(handle, symbols[i].name);
        if (!found)
            return base_fail(-ENOENT, "%s has no %s, so it is not libfabric: " WHO_HAS_IT, to->path, symbols[i].name);
        memcpy((char *)to + symbols[i].at, &found, sizeof found);
        if (dladdr(found, &file) && file.dli_fname && strlen(file.dli_fname) < sizeof to->path)
            snprintf(to->path, sizeof to->path, "%s", file.dli_fname);
    }
    uint32_t v = to->version();
    if (FI_VERSION_LT(v, FI_VERSION(1, 17)))
        return base_fail(-ENOENT, "%s is libfabric %u.%u, and weft needs 1.17 or newer: " WHO_HAS_IT, to->path, FI_MAJOR(v), FI_MINOR(v));
    return 0;
}

static int library_open(struct ofi_library *l, void **handle)
{
    const char *chosen = getenv("WEFT_OFI_LIBRARY"), *said;
    char first[256] = "";
    if (chosen && *chosen) {
        if (strlen(chosen) >= sizeof l->path)
            return base_fail(-ENAMETOOLONG, "WEFT_OFI_LIBRARY is longer than %zu bytes; use a shorter path", sizeof l->path - 1);
        snprintf(l->path, sizeof l->path, "%s", chosen);
        *handle = dlopen(chosen, RTLD_NOW | RTLD_LOCAL);
        said = dlerror();
        return *handle
                   ? 0
                   : base_fail(-ENOENT,
                               "the libfabric that WEFT_OFI_LIBRARY names cannot be loaded: %s; correct the path, or unset the variable",
                               said ? said : chosen);
    }
    for (size_t i = 0; i < NAMES; i++) {
        snprintf(l->path, sizeof l->path, "%s", names[i]);
        *handle = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
        if (*handle)
            return 0;
        said = dlerror();
        if (i == 0)
            snprintf(first, sizeof first, "%s", said ? said : "no reason given");
    }
    return base_fail(-ENOENT, "no libfabric (%s); " WHO_HAS_IT, first);
}

/* Load libfabric, and restore the program's signal handlers: libinfinipath, which Debian's libfabric needs, installs handlers when it is
 * loaded. Signals are blocked meanwhile. */
static int library_open_quietly(struct ofi_library *l, void **handle)
{
    static const int taken[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT};
    static const int faults[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT}; /* faults cannot be delayed */
    struct base_dispositions before;
    sigset_t later, mask;
    sigfillset(&later);
    for (size_t i = 0; i < sizeof faults / sizeof faults[0]; i++)
        sigdelset(&later, faults[i]);
    pthread_sigmask(SIG_BLOCK, &later, &mask);
    base_dispositions_save(&before, taken, sizeof taken / sizeof taken[0]);
    int rc = library_open(l, handle);
    base_dispositions_restore(&before);
    pthread_sigmask(SIG_SETMASK, &mask, NULL);
    return rc;
}

int ofi_load(const struct ofi_library **out)
{
    struct ofi_library l = {0};
    void *handle = NULL;
    int rc = 0;
    pthread_mutex_lock(&lock);
    if (!loaded) {
        rc = library_open_quietly(&l, &handle);
        if (!rc)
            rc = library_fill(&l, handle);
        if (!rc)
            library = l; /* never unloaded, because its threads may be running */
        else if (handle)
            dlclose(handle);
        loaded = rc == 0;
    }
    *out = rc ? NULL : &library;
    pthread_mutex_unlock(&lock);
    return rc;
}
