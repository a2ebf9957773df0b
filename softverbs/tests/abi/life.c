/* SPDX-License-Identifier: MIT
 *
 * The library's life in a program: no fabric, fork, and an exit while objects exist and threads poll. The library's files are linked in
 * statically, so that the test can read the fabric's counts.
 */
#include "pair.h"

#include "lib/lib.h"

#include <errno.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static struct pair pair;

static void fill_table(struct pair *of)
{
#define X(result, name, parameters) of->verbs.name = ibv_##name;
    PAIR_FUNCTIONS(X)
#undef X
}

static void open_pair(struct pair *of)
{
    memset(of, 0, sizeof *of);
    fill_table(of);
    pair_open(of);
    pair_connect(of, IBV_QPT_RC);
    pair_send(of, 5000);
}

static void close_pair(struct pair *of)
{
    pair_disconnect(of);
    pair_close(of);
}

/* How many objects all processes have on the first device of this host. */
static unsigned in_use(void)
{
    struct sf_device *device = &sv_lib.fabric->devices[sv_lib.fabric->model.topology.hosts[sv_lib.host].first_device];

    return device->qps + device->pds + device->mrs + device->cqs;
}

static void in_child(void (*child)(void))
{
    int status;
    pid_t pid = fork();

    CHECK(pid >= 0, "%s", strerror(errno));
    if (!pid) {
        child();
        exit(0);
    }
    CHECK(waitpid(pid, &status, 0) == pid && status == 0, "the child: %#x", (unsigned)status);
}

static void uses_nothing(void)
{
}

static void destroys_copies(void)
{
    close_pair(&pair);
}

static void joins_itself(void)
{
    struct pair own;

    open_pair(&own);
    CHECK(in_use() == 10, "%u", in_use()); /* both have two queue pairs, a domain, a region, a completion queue */
    close_pair(&own);
    CHECK(in_use() == 5, "%u", in_use());
}

static void joins_then_destroys_copies(void)
{
    struct pair own;

    open_pair(&own);
    close_pair(&pair);
    CHECK(in_use() == 10, "%u", in_use());
    close_pair(&own);
}

static void leaves_all_open(void)
{
    static struct pair own;

    open_pair(&own);
}

static void *poll(void *of)
{
    struct ibv_wc wc;

    while (ibv_poll_cq(((struct pair *)of)->cq, 1, &wc) >= 0)
        ;
    return NULL;
}

static void ends_while_polling(void)
{
    static struct pair own; /* outlives main's stack */
    pthread_t thread;

    open_pair(&own);
    CHECK(!pthread_create(&thread, NULL, poll, &own), "thread");
    usleep(2000);
}

static void has_no_fabric(void)
{
    struct ibv_device **list;
    int count = 7;

    unsetenv("SOFTVERBS_FABRIC");
    list = ibv_get_device_list(&count);
    CHECK(list && !list[0] && count == 0 && errno == ENODEV, "%p, %d: %s", (void *)list, count, strerror(errno));
    ibv_free_device_list(list);
    setenv("SOFTVERBS_FABRIC", "not there", 1);
    list = ibv_get_device_list(NULL);
    CHECK(list && !list[0] && errno == EINVAL, "%s", strerror(errno));
    ibv_free_device_list(list);
    setenv("SOFTVERBS_FABRIC", "not-there", 1);
    list = ibv_get_device_list(NULL);
    CHECK(list && !list[0] && errno == ENOENT, "%s", strerror(errno));
    ibv_free_device_list(list);
}

static void is_on_no_host(void)
{
    struct ibv_device **list;

    setenv("SOFTVERBS_HOST", "nowhere", 1);
    list = ibv_get_device_list(NULL);
    CHECK(list && !list[0] && errno == ENODEV, "%s", strerror(errno));
    ibv_free_device_list(list);
}

int main(void)
{
    static void (*const children[])(void) = {uses_nothing,    destroys_copies,   joins_itself, joins_then_destroys_copies,
                                             leaves_all_open, ends_while_polling};

    in_child(has_no_fabric); /* before this process has joined one */
    in_child(is_on_no_host);
    open_pair(&pair);
    for (size_t i = 0; i < sizeof children / sizeof *children; i++) {
        in_child(children[i]);
        CHECK(in_use() == 5, "child %zu: %u", i, in_use());
        pair_send(&pair, 5000);
    }
    close_pair(&pair);
    CHECK(in_use() == 0, "%u", in_use());
    return 0;
}
