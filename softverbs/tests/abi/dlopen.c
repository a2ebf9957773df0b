/* SPDX-License-Identifier: MIT
 *
 * dlopen LIBRARY [VERSION]: loads the library at run time, as programs do that run with and without RDMA (JACCL: "librdma.dylib" and plain
 * names; NCCL: "libibverbs.so.1" and names of version IBVERBS_1.1), and exchanges messages over each type of connection that the device
 * has.
 */
#include "pair.h"

#include <dlfcn.h>
#include <errno.h>
#include <string.h>

static void *find(void *library, const char *name, const char *version)
{
    void *symbol = version ? dlvsym(library, name, version) : dlsym(library, name);

    CHECK(symbol, "%s", dlerror());
    return symbol;
}

static void load(struct verbs_table *table, const char *path, const char *version)
{
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);

    CHECK(library, "%s", dlerror());
#define X(result, name, parameters) *(void **)&table->name = find(library, "ibv_" #name, version);
    PAIR_FUNCTIONS(X)
#undef X
    if (!version)
        return;
    /* Functions that later versions of NCCL look up. */
    CHECK(dlvsym(library, "ibv_reg_mr_iova2", "IBVERBS_1.8"), "%s", dlerror());
    CHECK(dlvsym(library, "ibv_reg_dmabuf_mr", "IBVERBS_1.12"), "%s", dlerror());
    CHECK(dlvsym(library, "ibv_query_ece", "IBVERBS_1.10"), "%s", dlerror());
}

/* Exchange messages over one type of connection. `frames`: the device counts 4 KiB frames, so use only messages, at most as large as the
 * smallest granted depth allows. */
static int exchange(struct pair *pair, enum ibv_qp_type type, int frames)
{
    static const uint32_t sizes[] = {1, 64, 4096, 65536, PAIR_HALF};
    struct ibv_qp_init_attr attr = {
        .send_cq = pair->cq,
        .recv_cq = pair->cq,
        .qp_type = type,
        .cap = {.max_send_wr = 1, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1},
    };
    struct ibv_qp *probe = pair->verbs.create_qp(pair->pd, &attr);

    if (!probe)
        return 0; /* not every device has every kind */
    CHECK(!pair->verbs.destroy_qp(probe), "probe");
    pair_connect(pair, type);
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        if (frames && sizes[i] > PAIR_DEPTH * 4096)
            break;
        pair_send(pair, sizes[i]);
        if (!frames)
            pair_write(pair, sizes[i]);
    }
    pair_disconnect(pair);
    return 1;
}

int main(int argc, char **argv)
{
    struct pair pair = {.mr = NULL};
    int kinds, thunderbolt;

    CHECK(argc > 1, "usage: %s LIBRARY [VERSION]", argv[0]);
    load(&pair.verbs, argv[1], argc > 2 ? argv[2] : NULL);
    pair_open(&pair);
    thunderbolt = (int)pair.context->device->transport_type == 100;
    kinds = exchange(&pair, IBV_QPT_UC, thunderbolt) + exchange(&pair, IBV_QPT_RC, thunderbolt);
    pair_close(&pair);
    printf("%s: %d kinds of connection\n", argv[1], kinds);
    return kinds == (thunderbolt ? 1 : 2) ? 0 : 1;
}
