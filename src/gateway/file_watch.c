/* SPDX-License-Identifier: MIT
 *
 * Learns by inotify of changes to files that are open or cached, and then compares the file with the disk (file_recheck()). inotify reports
 * nothing on other systems, about changes by other machines on a network file system, and when the user's limit of watches is reached. Then
 * a change is noticed later (FILE_CHECK_NS).
 */
#include "gateway/file.h"

#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>
#if defined(__linux__)
#include <sys/inotify.h>
#endif

#if defined(__linux__)

#define NOTICES_BYTES 4096u
#define ALL_WATCHES   (-1)

/* The inode is watched, not the name. The inode's attributes also change when the file is deleted, or another file gets its name. */
#define NOTICED (IN_MODIFY | IN_ATTRIB | IN_DELETE_SELF | IN_MOVE_SELF)

/* Compares the file that has the watch `wd` with the disk. ALL_WATCHES: compares all files. */
static void noticed(struct files *all, int wd)
{
    for (uint32_t i = 0; i < FILE_BUCKETS; i++)
        for (struct file_body *b = all->body[i], *next; b; b = next) {
            next = b->hashed;
            if (b->wd >= 0 && (b->wd == wd || wd == ALL_WATCHES) && !b->stale)
                file_recheck(all, b);
        }
}

static void notices_ready(struct gateway_watch *watch)
{
    struct files *all = watch->arg;
    _Alignas(struct inotify_event) char some[NOTICES_BYTES];
    ssize_t n = read(watch->fd, some, sizeof some);
    int last = -1;
    for (ssize_t at = 0; at + (ssize_t)sizeof(struct inotify_event) <= n;) {
        const struct inotify_event *e = (const struct inotify_event *)(const void *)(some + at);
        if (e->mask & IN_Q_OVERFLOW)
            noticed(all, ALL_WATCHES); /* the system has dropped notices */
        else if (e->wd != last && !(e->mask & IN_IGNORED))
            noticed(all, last = e->wd);
        at += (ssize_t)sizeof *e + e->len;
    }
}

static void unwatch(struct files *all, struct file_body *b);

void file_watch_open(struct files *all)
{
    all->forget = unwatch;
    all->notices = (struct gateway_watch){.fd = -1, .ready = notices_ready, .arg = all};
    int fd = inotify_init1(IN_NONBLOCK | IN_CLOEXEC);
    if (fd >= 0 && gateway_watch(gateway_server_watches(all->server), &all->notices, fd, GATEWAY_READABLE)) {
        close(fd);
        all->notices.fd = -1;
    }
}

static void *close_now(void *arg)
{
    close((int)(intptr_t)arg);
    return NULL;
}

/* Linux takes 10 to 20 ms to close a descriptor of inotify that has watches. A thread of its own does this while the node goes on closing.
 */
static void close_later(int fd)
{
    pthread_t thread;
    if (base_thread(&thread, close_now, (void *)(intptr_t)fd))
        close(fd);
    else
        pthread_detach(thread);
}

void file_watch_close(struct files *all)
{
    if (all->notices.fd < 0)
        return;
    int copy = fcntl(all->notices.fd, F_DUPFD_CLOEXEC, 0);
    gateway_unwatch(gateway_server_watches(all->server), &all->notices);
    if (copy >= 0)
        close_later(copy); /* now the last descriptor */
}

void file_watch(struct files *all, struct file_body *b)
{
    char path[64];
    if (all->notices.fd < 0 || b->fd < 0 || b->wd >= 0)
        return;
    snprintf(path, sizeof path, "/proc/self/fd/%d", b->fd);
    b->wd = inotify_add_watch(all->notices.fd, path, NOTICED);
}

/* Removes the watch of a file with its last generation: all generations of a file share one watch. */
static void unwatch(struct files *all, struct file_body *b)
{
    bool other = false;
    if (b->wd < 0)
        return;
    for (uint32_t i = 0; i < FILE_BUCKETS && !other; i++)
        for (struct file_body *o = all->body[i]; o && !other; o = o->hashed)
            other = o != b && o->wd == b->wd;
    if (!other)
        (void)inotify_rm_watch(all->notices.fd, b->wd);
    b->wd = -1;
}

#else

void file_watch_open(struct files *all)
{
    all->notices.fd = -1;
}

void file_watch_close(struct files *all)
{
    (void)all;
}

void file_watch(struct files *all, struct file_body *b)
{
    (void)all, (void)b;
}

#endif
