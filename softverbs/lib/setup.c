/* SPDX-License-Identifier: MIT
 *
 * Joins a fabric when the program first asks for devices, handles forks, and leaves the fabric when the program ends.
 *
 *   SOFTVERBS_FABRIC   name of the fabric; if it is not set there are no devices
 *   SOFTVERBS_HOST     name of the fabric's host that this program runs on; by default the first one
 *   SOFTVERBS_DIR      where fabrics are (fabric/file.c)
 *   SOFTVERBS_LOG      what is printed on stderr (log.c)
 */
#include "lib.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

struct sv_library sv_lib = {.mutex = PTHREAD_MUTEX_INITIALIZER};

static bool handlers; /* the fork handlers are installed */
static size_t mapped; /* bytes of the mapped fabric */
static pid_t member;  /* the process that joined */

/* Replaces the mapping of the fabric by a private copy at the same address, so that this process's threads no longer affect other
 * processes. */
static void setup_part(void)
{
    /* syscall() because the thread sanitizer treats mmap() as a write to the whole mapping, but its contents do not change */
    syscall(SYS_mmap, sv_lib.view.fabric, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_FIXED | MAP_NORESERVE, sv_lib.view.fd, 0L);
}

/* A forked child has no entry on the fabric, so its copies of the parent's objects act on a private copy of the fabric. If the child asks
 * for devices, it joins as a process of its own. */
static void setup_before_fork(void)
{
    pthread_mutex_lock(&sv_lib.mutex);
}

static void setup_after_fork(void)
{
    pthread_mutex_unlock(&sv_lib.mutex);
}

static void setup_in_child(void)
{
    pthread_mutex_init(&sv_lib.mutex, NULL);
    if (!sv_lib.joined)
        return;
    setup_part();
    close(sv_lib.view.fd);
    sv_lib.view.fd = -1; /* the number may be used for another descriptor */
    sv_lib.joined = false;
    sv_lib.life++;
}

/* Lets other processes access this process's memory, for which they need the right to trace this process. With Yama's scope 1, only
 * ancestors have this right, unless the process names others. Only root can trace a process that is not dumpable. */
static void allow_access(void)
{
    if (prctl(PR_GET_DUMPABLE, 0, 0, 0, 0) != 1) {
        sv_log(SV_INFO, "this process did not let other processes trace it (PR_SET_DUMPABLE is 0); softverbs allows tracing again, because "
                        "other processes must copy data from and to its memory");
        if (prctl(PR_SET_DUMPABLE, 1, 0, 0, 0))
            sv_log(SV_ERROR,
                   "other processes cannot reach the memory of this process, so no data will move: prctl(PR_SET_DUMPABLE) fails: %s",
                   strerror(errno));
    }
    /* EINVAL: the kernel has no Yama, so nothing has to be allowed */
    if (prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0) && errno != EINVAL)
        sv_log(SV_ERROR,
               "other processes may be unable to reach the memory of this process, and then no data moves: prctl(PR_SET_PTRACER) fails: %s",
               strerror(errno));
}

static int host_number(const struct sv_topology *topology, const char *name, uint32_t *host)
{
    if (!name || !*name) {
        *host = 0;
        return topology->host_count ? 0 : -ENODEV;
    }
    for (uint32_t i = 0; i < topology->host_count && i < SV_HOSTS; i++) {
        if (!strncmp(topology->hosts[i].name, name, SV_NAME)) {
            *host = i;
            return 0;
        }
    }
    return -ENODEV;
}

static void free_tables(void)
{
    free(sv_lib.qps);
    free(sv_lib.cqs);
    free(sv_lib.srqs);
    sv_lib.qps = NULL;
    sv_lib.cqs = NULL;
    sv_lib.srqs = NULL;
}

static int make_tables(void)
{
    free_tables(); /* a forked child frees its copies of the parent's tables */
    /* 8 bytes for each possible object; only touched pages use memory */
    sv_lib.qps = calloc(SF_QPS, sizeof *sv_lib.qps);
    sv_lib.cqs = calloc(SF_CQS, sizeof *sv_lib.cqs);
    sv_lib.srqs = calloc(SF_SRQS, sizeof *sv_lib.srqs);
    if (sv_lib.qps && sv_lib.cqs && sv_lib.srqs)
        return 0;
    free_tables();
    return -ENOMEM;
}

/* Logged once, at any log level, because a real device would not fail for this reason. */
static void no_room(const struct sf_view *view)
{
    static _Atomic int said;

    if (!atomic_exchange_explicit(&said, 1, memory_order_relaxed))
        sv_log(SV_ERROR,
               "%s: its file system is full, so calls fail that would succeed otherwise; delete files of that file system, or set "
               "SOFTVERBS_DIR to a directory with more room",
               view->path);
}

static int setup_join(void)
{
    const char *name = getenv("SOFTVERBS_FABRIC"), *where = getenv("SOFTVERBS_HOST");
    struct sv_why why = {""};
    struct sf_view look = {.fd = -1};
    uint32_t host;
    int err;

    if (!name || !*name) {
        sv_log(SV_ERROR, "no devices: SOFTVERBS_FABRIC is not set; start the program with `softverbs run -- PROGRAM`");
        return -ENODEV;
    }
    if (!sf_name_valid(name)) {
        sv_log(SV_ERROR, "no devices: SOFTVERBS_FABRIC=%s is not a valid name of a fabric; `softverbs ls` lists the fabrics", name);
        return -EINVAL;
    }
    /* To join, this process needs the host's index, which it finds on the fabric by the host's name. */
    err = sf_attach(&look, name, false, 0, &why);
    if (err) {
        sv_log(SV_ERROR, "no devices: cannot open fabric %s: %s", name, *why.text ? why.text : strerror(-err));
        return err;
    }
    err = host_number(&look.fabric->model.topology, where, &host);
    if (err)
        sv_log(SV_ERROR, "no devices: fabric %s (%s) has no host %s: set SOFTVERBS_HOST to one that `softverbs ls` shows", name,
               look.fabric->model.topology.name, where ? where : "");
    sf_detach(&look);
    if (err)
        return err;
    err = make_tables();
    if (err)
        return err;
    allow_access();
    err = sf_attach(&sv_lib.view, name, true, (uint16_t)host, &why);
    sv_lib.view.full = no_room;
    if (err) {
        sv_log(SV_ERROR, "no devices: cannot join fabric %s: %s", name, *why.text ? why.text : strerror(-err));
        return err;
    }
    sv_lib.fabric = sv_lib.view.fabric;
    mapped = SF_BYTES;
    member = getpid();
    /* sf_attach() excludes the mapping from children. Undo this, because otherwise something else could be mapped at this address in a
     * child before setup_in_child() runs, such as the stack of a thread started in another library's child handler. */
    madvise(sv_lib.fabric, mapped, MADV_DOFORK);
    sv_lib.profile = &sv_lib.fabric->model.profile;
    sv_lib.host = host;
    sv_lib.joined = true;
    sv_log(SV_INFO, "fabric %s (%s, %s), host %s", name, sv_lib.fabric->model.topology.name, sv_lib.profile->name,
           sv_lib.fabric->model.topology.hosts[host].name);
    return 0;
}

int sv_join(void)
{
    int err = 0;

    pthread_mutex_lock(&sv_lib.mutex);
    if (!handlers) {
        handlers = true;
        pthread_atfork(setup_before_fork, setup_after_fork, setup_in_child);
    }
    if (!sv_lib.joined)
        err = setup_join();
    pthread_mutex_unlock(&sv_lib.mutex);
    return -err;
}

/* Leaves the fabric when the program ends. Other threads may still poll. They get a private copy of the fabric at the same address, while a
 * second, shared mapping is used to free everything. */
__attribute__((destructor)) static void setup_leave(void)
{
    struct timespec until;
    struct sf_view leaving;
    void *again;

    /* The wait for the mutex is limited, because the thread that holds it may be stuck; it may even be this thread, interrupted by a
     * signal. The limit is by the wall clock, because the thread sanitizer does not know the call for other clocks. */
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec++;
    if (pthread_mutex_timedlock(&sv_lib.mutex, &until))
        return;
    if (!sv_lib.joined || member != getpid()) /* a child made without fork handlers has not joined */
        goto out;
    leaving = sv_lib.view;
    again = mmap(NULL, mapped, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, leaving.fd, 0);
    if (again == MAP_FAILED)
        goto out; /* the next process that finds the objects frees them */
    setup_part();
    leaving.fabric = again;
    sv_lib.view.fd = -1;
    __atomic_store_n(&sv_lib.joined, false, __ATOMIC_RELAXED); /* sv_joined() reads this in threads that still run */
    sf_detach(&leaving);
out:
    pthread_mutex_unlock(&sv_lib.mutex);
}
