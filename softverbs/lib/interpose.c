/* SPDX-License-Identifier: MIT
 *
 * Finds the functions of libc that this library replaces. All are looked up when the library is loaded, so that no signal handler needs to
 * look one up. If another library calls one of them before that, the call looks up this one function.
 */
#include "interpose.h"

#include <dlfcn.h>

uintptr_t sv_next(enum sv_call call)
{
    static const char *const names[SV_CALLS] = {
        [SV_ACCESS] = "access",     [SV_FACCESSAT] = "faccessat", [SV_STAT] = "stat",       [SV_LSTAT] = "lstat",
        [SV_FSTATAT] = "fstatat",   [SV_STATX] = "statx",         [SV_OPEN] = "open",       [SV_OPENAT] = "openat",
        [SV_FOPEN] = "fopen",       [SV_OPENDIR] = "opendir",     [SV_READDIR] = "readdir", [SV_REWINDDIR] = "rewinddir",
        [SV_CLOSEDIR] = "closedir", [SV_SCANDIR] = "scandir",
    };
    static _Atomic(uintptr_t) found[SV_CALLS];
    uintptr_t function = atomic_load_explicit(&found[call], memory_order_relaxed); /* relaxed: every thread finds the same value */

    if (!function) {
        function = (uintptr_t)dlsym(RTLD_NEXT, names[call]);
        atomic_store_explicit(&found[call], function, memory_order_relaxed);
    }
    return function;
}

__attribute__((constructor)) static void find_all(void)
{
    for (enum sv_call call = 0; call < SV_CALLS; call++)
        sv_next(call);
}
