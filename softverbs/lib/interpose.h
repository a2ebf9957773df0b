/* SPDX-License-Identifier: MIT
 *
 * Functions with the names of libc's functions, which the loader finds before libc's (paths.c, listing.c).
 *
 * They are declared with their linker names, because headers may replace `stat` by `stat64`, or `open` by a checked form. On 64-bit
 * machines, functions with 64 in their names are the same as those without.
 */
#ifndef SV_INTERPOSE_H
#define SV_INTERPOSE_H

#include "lib.h"

#include <dirent.h>
#include <sys/stat.h>

_Static_assert(sizeof(struct stat) == sizeof(struct stat64) && sizeof(struct dirent) == sizeof(struct dirent64) && sizeof(off_t) == 8,
               "a machine of 64 bits");
/* interpose.c: the function that this library replaces, of libc or of another interposing library. */
enum sv_call {
    SV_ACCESS,
    SV_FACCESSAT,
    SV_STAT,
    SV_LSTAT,
    SV_FSTATAT,
    SV_STATX,
    SV_OPEN,
    SV_OPENAT,
    SV_FOPEN,
    SV_OPENDIR,
    SV_READDIR,
    SV_REWINDDIR,
    SV_CLOSEDIR,
    SV_SCANDIR,
    SV_CALLS,
};
uintptr_t sv_next(enum sv_call);

#define CALL(type, name, ...)                                  \
    SV_PUBLIC type sv_call_##name(__VA_ARGS__) __asm__(#name); \
    type sv_call_##name(__VA_ARGS__)
#define TWIN(type, name, twin, ...) SV_PUBLIC type sv_call_##twin(__VA_ARGS__) __asm__(#twin) __attribute__((alias(#name)))

#endif
