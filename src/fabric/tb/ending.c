/* SPDX-License-Identifier: MIT
 *
 * Frees the devices when a signal or exit() ends the process. What a process does not free on a Thunderbolt device stays allocated until
 * the host restarts, so after a few programs that ended by a signal no protection domain would be left.
 *
 * While a node uses such devices, each signal of `fatal` that has its default action frees everything, and then ends the process as before.
 * So does exit() without weft_close(), after the program's atexit() functions, which may call weft_close(). A program that handles these
 * signals, or replaces itself by exec(), must close its node itself. A write to a closed pipe returns EPIPE, and SIGPIPE ends the process a
 * moment later. After SIGKILL and crashes only a separate process that owns the device can free its objects: WEFT_GUARD (verbs/guard.c).
 *
 * Only the process that opened the node frees its devices. A forked child inherits the handler, but signals then have their default action,
 * and exit() does not touch the parent's devices.
 *
 * All code that allocates or frees objects of a device, or follows a pointer to one, holds tb->receiving or a link's lock. So it cannot run
 * at the same time as this code.
 *
 * Signals belong to the process, so this is the only file of the library with global state.
 */
#include "fabric/tb/tb.h"

#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>

static const int fatal[] = {SIGTERM, SIGINT, SIGHUP, SIGQUIT, SIGPIPE, SIGALRM, SIGUSR1, SIGUSR2, SIGXCPU};
#define FATAL (sizeof fatal / sizeof fatal[0])
/* The first FIRST signals of `fatal` ask a process to end. With this file's handler they also end the first process of a container, whose
 * default action for every signal is to ignore it. */
#define FIRST 3u
/* How long the thread that frees the devices waits for a lock. The holder may be in a slow call of the device's driver. After this time the
 * node's devices are not freed. `weft run` kills the process after 5 s. */
#define PATIENCE (4 * WEFT_SECOND)

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct tb *nodes; /* the nodes of this process, linked by next_ending */
static int told[2] = {-1, -1};
static bool fork_handled;
static _Atomic pid_t owner; /* the process that owns the nodes; in a forked child this is still its parent's process id */

static void ending_on_signal(int number)
{
    int was = errno;
    /* acquire: pairs with the release in ending_prepare(), so `told` is valid */
    if (getpid() != atomic_load_explicit(&owner, memory_order_acquire)) {
        /* A forked child has inherited this handler. The signal ends the child when the handler returns. */
        struct sigaction plain = {.sa_handler = SIG_DFL};
        sigaction(number, &plain, NULL);
        raise(number);
        errno = was;
        return;
    }
    unsigned char byte = (unsigned char)number;
    (void)!write(told[1], &byte, 1);
    errno = was;
}

/* Takes a lock, or gives up after PATIENCE, because the thread that holds the lock may never run again. */
static bool ending_take_lock(base_spin *spin)
{
    int64_t end = base_deadline(PATIENCE);
    while (!base_spin_try(spin)) {
        if (base_now_ns() > end)
            return false;
        base_sleep_ns(WEFT_MS);
    }
    return true;
}

/* Frees everything that a node uses on its devices, unless weft_close() has done so. The locks stay held, so that every other thread blocks
 * until the process ends. */
static void ending_give_back(struct tb *tb)
{
    bool mine = ending_take_lock(&tb->receiving);
    for (uint32_t i = 0; mine && i < tb->w->founders; i++) {
        struct tb_link *l = tb_link_of(tb, i);
        mine = !l || ending_take_lock(&l->r.lock);
    }
    if (!mine) {
        base_log(BASE_LOG_WARN,
                 "a call of the Thunderbolt driver does not return, so what this process uses on the Thunderbolt devices is not freed. "
                 "Restart the host when a device has no protection domain left. Set WEFT_GUARD to avoid this in later runs");
        return;
    }
    for (uint32_t i = 0; i < tb->cable_count; i++)
        tb_cable_close(tb->cables[i]);
    tb_devices_close(tb);
}

static void *ending_thread(void *arg)
{
    unsigned char number;
    (void)arg;
    while (read(told[0], &number, 1) != 1)
        ;
    pthread_mutex_lock(&lock);
    for (struct tb *tb = nodes; tb; tb = tb->next_ending)
        ending_give_back(tb);
    struct sigaction plain = {.sa_handler = SIG_DFL};
    sigaction(number, &plain, NULL);
    /* Send the signal to this thread, in which base_thread() has blocked it. */
    sigset_t this;
    sigemptyset(&this);
    sigaddset(&this, number);
    pthread_sigmask(SIG_UNBLOCK, &this, NULL);
    raise(number);
    _exit(128 + number); /* reached by the first process of a container, which ignores the signal's default action */
}

/* A destructor, because it must run after the program's atexit() functions and the destructors of static C++ objects, which may call
 * weft_close(). If this function ran first, it would hold the locks, and weft_close() would block for ever. */
__attribute__((destructor)) static void on_exit_without_close(void)
{
    if (getpid() != atomic_load_explicit(&owner, memory_order_relaxed))
        return;
    pthread_mutex_lock(&lock);
    for (struct tb *tb = nodes; tb; tb = tb->next_ending)
        ending_give_back(tb);
    nodes = NULL;
    pthread_mutex_unlock(&lock);
}

static void plain_again(void)
{
    for (size_t i = 0; i < FATAL; i++) {
        struct sigaction now, plain = {.sa_handler = SIG_DFL};
        if (sigaction(fatal[i], NULL, &now) == 0 && !(now.sa_flags & SA_SIGINFO) && now.sa_handler == ending_on_signal)
            sigaction(fatal[i], &plain, NULL);
    }
}

static void before_fork(void)
{
    pthread_mutex_lock(&lock);
}

static void after_fork(void)
{
    pthread_mutex_unlock(&lock);
}

/* In a forked child: forget the nodes and the thread that reads the pipe, so that a node opened by the child begins anew. */
static void in_child(void)
{
    plain_again();
    nodes = NULL;
    if (told[0] >= 0) {
        close(told[0]);
        close(told[1]);
    }
    told[0] = told[1] = -1;
    pthread_mutex_unlock(&lock);
}

static int ending_prepare(void)
{
    pthread_t thread;
    if (told[0] >= 0)
        return 0;
    int rc = base_pipe(told, 0);
    if (rc)
        return rc;
    rc = base_thread(&thread, ending_thread, NULL);
    if (rc) {
        close(told[0]);
        close(told[1]);
        told[0] = told[1] = -1;
        return base_fail(rc, "cannot start the thread that frees the Thunderbolt devices at the end: %s" BASE_THREAD_HINT,
                         base_strerror(rc));
    }
    pthread_detach(thread);
    atomic_store_explicit(&owner, getpid(), memory_order_release);
    if (!fork_handled)
        pthread_atfork(before_fork, after_fork, in_child);
    fork_handled = true;
    return 0;
}

int tb_ending_watch(struct tb *tb)
{
    pthread_mutex_lock(&lock);
    int rc = ending_prepare();
    if (!rc) {
        tb->next_ending = nodes;
        nodes = tb;
        tb->watched = true;
        for (size_t i = 0; i < (getpid() == 1 ? FIRST : FATAL); i++) {
            struct sigaction now, ours = {.sa_handler = ending_on_signal, .sa_flags = SA_RESTART};
            sigemptyset(&ours.sa_mask);
            if (sigaction(fatal[i], NULL, &now) == 0 && !(now.sa_flags & SA_SIGINFO) && now.sa_handler == SIG_DFL)
                sigaction(fatal[i], &ours, NULL);
        }
    }
    pthread_mutex_unlock(&lock);
    return rc;
}

void tb_ending_forget(struct tb *tb)
{
    pthread_mutex_lock(&lock);
    for (struct tb **at = &nodes; tb->watched && *at; at = &(*at)->next_ending) {
        if (*at == tb) {
            *at = tb->next_ending;
            break;
        }
    }
    tb->watched = false;
    if (!nodes && told[0] >= 0)
        plain_again();
    pthread_mutex_unlock(&lock);
}
