/* SPDX-License-Identifier: MIT
 *
 * The library's life in a program: it joins a fabric when the program first asks for devices, knows when it was forked,
 * and leaves when the program ends.
 *
 *   SOFTVERBS_FABRIC   name of the fabric: without it there are no devices
 *   SOFTVERBS_HOST     the host of it that this program runs on: a name; the first one without it
 *   SOFTVERBS_DIR      where fabrics lie (fabric/file.c)
 *   SOFTVERBS_LOG      what is said on stderr (log.c)
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

static bool handlers; /* of fork, installed */
static size_t mapped; /* bytes of the fabric */
static pid_t member;  /* the process that joined */

/* From here on this process's view is a private copy of the fabric: what its threads still do touches nobody else.
 * The address stays the same, so no pointer into it dangles. */
static void setup_part(void)
{
    /* The system call itself: to the thread sanitizer mmap is a write to all of it, but the bytes do not change here. */
    syscall(SYS_mmap, sv_lib.view.fabric, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_FIXED | MAP_NORESERVE, sv_lib.view.fd, 0L);
}

/* The child has the parent's memory, not its place on the fabric. Its copies of the parent's objects act on a private copy
 * of the fabric; if it asks for devices, it joins as a process of its own. */
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
    sv_lib.view.fd = -1; /* nothing is done to whatever gets this number next */
    sv_lib.joined = false;
    sv_lib.life++;
}

/* Others move data into and out of this process's memory: that takes their right to trace it. Yama's scope 1 gives it to
 * descendants only, unless the traced process names others; a process that is not dumpable gives it to root alone. */
static void allow_access(void)
{
    if (prctl(PR_GET_DUMPABLE, 0, 0, 0, 0) != 1) {
        sv_log(SV_INFO,
               "this process does not let others trace it (PR_SET_DUMPABLE); this is allowed again, because data cannot move without it");
        if (prctl(PR_SET_DUMPABLE, 1, 0, 0, 0))
            sv_log(SV_ERROR, "PR_SET_DUMPABLE: %s: peers cannot reach this process's memory", strerror(errno));
    }
    if (prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0) && errno != EINVAL) /* EINVAL: no Yama here */
        sv_log(SV_ERROR, "PR_SET_PTRACER: %s: peers may be unable to reach this process's memory", strerror(errno));
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
    free_tables(); /* a fork's child still has its parent's */
    /* 8 bytes for each object there could be; used where touched. */
    sv_lib.qps = calloc(SF_QPS, sizeof *sv_lib.qps);
    sv_lib.cqs = calloc(SF_CQS, sizeof *sv_lib.cqs);
    sv_lib.srqs = calloc(SF_SRQS, sizeof *sv_lib.srqs);
    if (sv_lib.qps && sv_lib.cqs && sv_lib.srqs)
        return 0;
    free_tables();
    return -ENOMEM;
}

/* No device would refuse because of that, so it is said once, whatever SOFTVERBS_LOG says of refusals. */
static void no_room(const struct sf_view *view)
{
    static _Atomic int said;

    if (!atomic_exchange_explicit(&said, 1, memory_order_relaxed))
        sv_log(SV_ERROR,
               "%s: its file system is full: calls fail that this device would not refuse. Free space there, or make the fabric in a "
               "directory with more room (SOFTVERBS_DIR)",
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
        sv_log(SV_ERROR, "no devices: SOFTVERBS_FABRIC=%s is not a valid name of a fabric", name);
        return -EINVAL;
    }
    /* A process says which host it is on when it takes its place; the hosts' names are on the fabric. */
    err = sf_attach(&look, name, false, 0, &why);
    if (err) {
        sv_log(SV_ERROR, "no devices: fabric %s: %s", name, *why.text ? why.text : strerror(-err));
        return err;
    }
    err = host_number(&look.fabric->model.topology, where, &host);
    if (err)
        sv_log(SV_ERROR, "no devices: fabric %s (%s) has no host %s (SOFTVERBS_HOST)", name, look.fabric->model.topology.name,
               where ? where : "");
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
        sv_log(SV_ERROR, "no devices: fabric %s: %s", name, *why.text ? why.text : strerror(-err));
        return err;
    }
    sv_lib.fabric = sv_lib.view.fabric;
    mapped = SF_BYTES;
    member = getpid();
    /* sf_attach takes it out of children. Until setup_in_child has run, something else could be mapped there, such as the stack of
     * a thread that another library starts in its child's handler. */
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

/* Other threads may run until the very end, and go on polling: for them the fabric stays where it was, as a private copy,
 * while a second mapping of the shared one is used to give everything back. */
__attribute__((destructor)) static void setup_leave(void)
{
    struct timespec until;
    struct sf_view leaving;
    void *again;

    /* Not for ever: a thread may be stuck with it, or this may be that thread, interrupted by a signal. By the wall clock,
     * because the thread sanitizer does not know the call that takes another. */
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec++;
    if (pthread_mutex_timedlock(&sv_lib.mutex, &until))
        return;
    if (!sv_lib.joined || member != getpid()) /* a child that was made without the fork handlers has no part in it */
        goto out;
    leaving = sv_lib.view;
    again = mmap(NULL, mapped, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, leaving.fd, 0);
    if (again == MAP_FAILED)
        goto out; /* the next process that comes across what is left frees it */
    setup_part();
    leaving.fabric = again;
    sv_lib.view.fd = -1;
    __atomic_store_n(&sv_lib.joined, false, __ATOMIC_RELAXED); /* threads that go on look at it: sv_joined() */
    sf_detach(&leaving);
out:
    pthread_mutex_unlock(&sv_lib.mutex);
}
