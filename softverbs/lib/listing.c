/* SPDX-License-Identifier: MIT
 *
 * opendir and scandir of /sys/class/infiniband, for programs that look for devices there. As in paths.c, libc's function is called first.
 * Only if it finds no directory, the devices of this host are listed (sysfs.c).
 */
#include "interpose.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SLOTS = 32 };
static struct slot {
    _Atomic uintptr_t stream; /* 0: free; TAKEN: being filled in */
    char path[256];
    uint32_t at;
    struct dirent entry;
} slots[SLOTS];
#define TAKEN ((uintptr_t)1)

/* Whether the path is an emulated directory. If not, errno stays unchanged. Called when libc's function has failed. */
static bool listing_ours(const char *path)
{
    static const char sys[] = "/sys/class/infiniband";
    int error = errno;
    bool yes = error == ENOENT && !strncmp(path, sys, sizeof sys - 1) && strlen(path) < sizeof slots->path && getenv("SOFTVERBS_FABRIC") &&
               !sv_join() && sv_sysfs_directory(path);

    errno = error;
    return yes;
}

static struct slot *slot_of(const DIR *stream)
{
    for (int i = 0; stream && i < SLOTS; i++) {
        /* acquire: pairs with the release in opendir */
        if (atomic_load_explicit(&slots[i].stream, memory_order_acquire) == (uintptr_t)stream)
            return &slots[i];
    }
    return NULL;
}

/* Reads an entry of a directory, in which "." and ".." come first. */
static bool listing_entry(const char *path, uint32_t index, struct dirent *e)
{
    bool folder = true, there = true;

    memset(e, 0, sizeof *e);
    if (index < 2)
        memcpy(e->d_name, "..", index + 1);
    else
        there = sv_sysfs_entry(path, index - 2, e->d_name, sizeof e->d_name, &folder);
    e->d_ino = index + 1;
    e->d_off = index + 1;
    e->d_reclen = sizeof *e;
    e->d_type = folder ? DT_DIR : DT_REG;
    return there;
}

CALL(DIR *, opendir, const char *path)
{
    DIR *(*call)(const char *) = (DIR * (*)(const char *)) sv_next(SV_OPENDIR);
    DIR *stream = call(path);

    if (stream || !listing_ours(path))
        return stream;
    for (int i = 0; i < SLOTS; i++) {
        uintptr_t none = 0;

        if (!atomic_compare_exchange_strong_explicit(&slots[i].stream, &none, TAKEN, memory_order_acquire, memory_order_relaxed))
            continue;
        stream = call("/");
        strcpy(slots[i].path, path); /* fits, as listing_ours() has checked */
        slots[i].at = 0;
        /* release: pairs with the acquire in slot_of() */
        atomic_store_explicit(&slots[i].stream, (uintptr_t)stream, memory_order_release);
        return stream;
    }
    errno = EMFILE;
    return NULL;
}

CALL(struct dirent *, readdir, DIR *stream)
{
    struct slot *s = slot_of(stream);

    if (!s)
        return ((struct dirent * (*)(DIR *)) sv_next(SV_READDIR))(stream);
    if (!listing_entry(s->path, s->at, &s->entry))
        return NULL;
    s->at++;
    return &s->entry;
}

CALL(void, rewinddir, DIR *stream)
{
    struct slot *s = slot_of(stream);

    if (s)
        s->at = 0;
    ((void (*)(DIR *))sv_next(SV_REWINDDIR))(stream);
}

CALL(int, closedir, DIR *stream)
{
    struct slot *s = slot_of(stream);

    if (s) /* release: the slot was read before libc can use the stream's address again; pairs with the acquire in opendir */
        atomic_store_explicit(&s->stream, 0, memory_order_release);
    return ((int (*)(DIR *))sv_next(SV_CLOSEDIR))(stream);
}

typedef int filter_call(const struct dirent *);
typedef int order_call(const struct dirent **, const struct dirent **);

CALL(int, scandir, const char *path, struct dirent ***list, filter_call *filter, order_call *order)
{
    int count = ((int (*)(const char *, struct dirent ***, filter_call *, order_call *))sv_next(SV_SCANDIR))(path, list, filter, order);
    struct dirent **names = NULL, **more, one;

    if (count >= 0 || !listing_ours(path))
        return count;
    count = 0;
    for (uint32_t i = 0; listing_entry(path, i, &one); i++) {
        if (filter && !filter(&one))
            continue;
        more = realloc(names, ((size_t)count + 1) * sizeof *names);
        if (more)
            names = more;
        if (!more || !(names[count] = malloc(sizeof one)))
            goto no_memory;
        memcpy(names[count++], &one, sizeof one);
    }
    if (count && order)
        qsort(names, (size_t)count, sizeof *names, (int (*)(const void *, const void *))order);
    if (!names && !(names = malloc(sizeof *names))) /* the caller also frees an empty list */
        goto no_memory;
    *list = names;
    return count;

no_memory:
    while (count > 0)
        free(names[--count]);
    free(names);
    errno = ENOMEM;
    return -1;
}

TWIN(struct dirent *, readdir, readdir64, DIR *);
TWIN(int, scandir, scandir64, const char *, struct dirent ***, filter_call *, order_call *);
