/* SPDX-License-Identifier: MIT
 *
 * The end of a process that uses Thunderbolt devices (src/fabric/tb/ending.c), on devices made here (node.h): whatever the program does
 * with signals and exit(), it ends, and everything on the devices is freed.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <errno.h>
#include <pthread.h>
#if defined(__linux__)
#include <sched.h>
#endif
#include <signal.h>
#include <sys/wait.h>

#include "node.h"

#define HANGS (60 * WEFT_SECOND)

static void watched_node(void)
{
    open_node();
    must(tb_ending_watch(node.tb) == 0);
}

/* Waits for a process, which may block all signals, and returns how it has ended. */
static int end_within(pid_t pid, int64_t ns)
{
    int status = 0;
    for (int64_t end = base_deadline(ns); waitpid(pid, &status, WNOHANG) == 0; usleep(10000))
        if (base_now_ns() > end)
            kill(pid, SIGKILL);
    return status;
}

/* Runs a function in a process of its own. Afterwards nothing may be left on the devices. */
static int end_of(void (*run)(void))
{
    alive = mmap(NULL, sizeof *alive, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(alive != MAP_FAILED);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        run();
        _exit(99);
    }
    int how = end_within(pid, HANGS);
    assert_int_equal(*alive, 0);
    return how;
}

/* --- exit() --- */

static void exits(void)
{
    watched_node();
    exit(7);
}

/* A function that the program registered with atexit() before it opened the node runs after all later ones. */
static void closes_at_exit(void)
{
    must(atexit(close_node) == 0);
    watched_node();
    exit(7);
}

static void test_exit(void **state)
{
    (void)state;
    assert_int_equal(end_of(exits), 7 << 8);
    assert_int_equal(end_of(closes_at_exit), 7 << 8);
}

/* --- signals --- */

static void waits_for_end(void)
{
    for (;;)
        usleep(1000);
}

static void told(void)
{
    kill(getpid(), SIGTERM);
    waits_for_end();
}

static void is_told(void)
{
    watched_node();
    told();
}

/* All threads of the program block the signal after it has arrived and before anything is freed. */
static void holds_back(void)
{
    sigset_t all;
    sigfillset(&all);
    watched_node();
    base_spin_lock(&node.tb->receiving);
    kill(getpid(), SIGTERM);
    pthread_sigmask(SIG_SETMASK, &all, NULL);
    base_spin_unlock(&node.tb->receiving);
    waits_for_end();
}

static void test_signal(void **state)
{
    (void)state;
    int how = end_of(is_told);
    assert_true(WIFSIGNALED(how) && WTERMSIG(how) == SIGTERM);
    how = end_of(holds_back);
    assert_true(WIFSIGNALED(how) && WTERMSIG(how) == SIGTERM);
}

#if defined(__linux__)
/* A write to a closed pipe returns its error, as it would without a node, and SIGPIPE ends the process afterwards. */
static void writes_first(void)
{
    int end[2];
    watched_node();
    must(pipe(end) == 0 && close(end[0]) == 0);
    must(write(end[1], "", 1) == -1 && errno == EPIPE);
    kill(getpid(), SIGUSR1);
    usleep(100000);
    told();
}

/* The first process of a container, for which signals have no default action. */
static void first_process(void)
{
    if (unshare(CLONE_NEWPID) != 0)
        _exit(errno == EPERM ? 98 : 97);
    pid_t pid = fork();
    must(pid >= 0);
    if (pid == 0) {
        must(getpid() == 1);
        writes_first();
    }
    int how = end_within(pid, HANGS / 2); /* end it in any case before this process ends */
    _exit(WIFEXITED(how) ? WEXITSTATUS(how) : 96);
}

static void test_first_process(void **state)
{
    (void)state;
    int how = end_of(first_process);
    if (how == 98 << 8)
        skip(); /* this user may not make a PID namespace */
    assert_int_equal(how, (128 + SIGTERM) << 8);
}
#endif

int main(void)
{
    base_log_set("error");
    signal(SIGTERM, SIG_DFL);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_exit),
        cmocka_unit_test(test_signal),
#if defined(__linux__)
        cmocka_unit_test(test_first_process),
#endif
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
