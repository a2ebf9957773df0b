/* SPDX-License-Identifier: MIT
 *
 * Queue pairs of one device: see pairs.h.
 */
#include "pairs.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

struct sv_model model;
struct ibv_context *context;
struct ibv_pd *pd;
struct ibv_cq *cq;

/* ---- The device -------------------------------------------------------------------------------------------------- */
int open_device(void **state)
{
    int count = 0;
    struct ibv_device **list = ibv_get_device_list(&count);
    (void)state;
    if (!list || count == 0)
        return -1;
    context = ibv_open_device(list[0]);
    pd = context ? ibv_alloc_pd(context) : NULL;
    cq = pd ? ibv_create_cq(context, 64, NULL, NULL, 0) : NULL;
    ibv_free_device_list(list);
    return cq ? 0 : -1;
}

int close_device(void **state)
{
    (void)state;
    return ibv_destroy_cq(cq) || ibv_dealloc_pd(pd) || ibv_close_device(context);
}

struct ibv_qp_init_attr asks(enum ibv_qp_type type)
{
    return (struct ibv_qp_init_attr){
        .send_cq = cq,
        .recv_cq = cq,
        .qp_type = type,
        .cap = {.max_send_wr = 8, .max_recv_wr = 8, .max_send_sge = 1, .max_recv_sge = 1},
    };
}

struct ibv_qp *make(enum ibv_qp_type type)
{
    struct ibv_qp_init_attr a = asks(type);
    struct ibv_qp *qp = ibv_create_qp(pd, &a);
    assert_non_null(qp);
    return qp;
}

const struct sv_device_model *device_of(uint32_t device)
{
    return &model.topology.devices[device];
}

uint32_t neighbour(void)
{
    int32_t cable = device_of(0)->cable;
    return cable >= 0 ? (uint32_t)cable : 1;
}

struct ibv_qp_attr right(void)
{
    struct ibv_qp_attr a = {
        .path_mtu = IBV_MTU_1024,
        .qkey = 0x11111111,
        .rq_psn = 1,
        .sq_psn = 2,
        .dest_qp_num = 77,
        .qp_access_flags = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE,
        .ah_attr = {.is_global = 1, .port_num = 1, .grh = {.sgid_index = 1, .hop_limit = 1}},
        .port_num = 1,
        .timeout = 14,
        .retry_cnt = 7,
        .rnr_retry = 7,
        .min_rnr_timer = 12,
    };
    memcpy(a.ah_attr.grh.dgid.raw, device_of(neighbour())->gids[1].raw, 16);
    return a;
}

/* ---- Steps --------------------------------------------------------------------------------------------------------- */

const struct pair_letter letters[LETTERS] = {
    {'c', IBV_QP_CUR_STATE},
    {'n', IBV_QP_EN_SQD_ASYNC_NOTIFY},
    {'f', IBV_QP_ACCESS_FLAGS},
    {'k', IBV_QP_PKEY_INDEX},
    {'p', IBV_QP_PORT},
    {'q', IBV_QP_QKEY},
    {'a', IBV_QP_AV},
    {'m', IBV_QP_PATH_MTU},
    {'t', IBV_QP_TIMEOUT},
    {'r', IBV_QP_RETRY_CNT},
    {'R', IBV_QP_RNR_RETRY},
    {'P', IBV_QP_RQ_PSN},
    {'i', IBV_QP_MAX_QP_RD_ATOMIC},
    {'A', IBV_QP_ALT_PATH},
    {'T', IBV_QP_MIN_RNR_TIMER},
    {'S', IBV_QP_SQ_PSN},
    {'d', IBV_QP_MAX_DEST_RD_ATOMIC},
    {'g', IBV_QP_PATH_MIG_STATE},
    {'C', IBV_QP_CAP},
    {'D', IBV_QP_DEST_QPN},
};

int bits(const char *text)
{
    int all = 0;
    for (; *text; text++)
        for (size_t i = 0; i < LETTERS; i++)
            if (letters[i].letter == *text)
                all |= letters[i].bit;
    return all;
}

/* The attributes that each transition requires and allows, from the text of the specification. Over Ethernet, an alternate path is refused,
 * as Linux refuses it. */
static const struct {
    enum ibv_qp_type type;
    int from, to;
    const char *required, *optional;
} expected[] = {
    {IBV_QPT_RC, RESET, INIT, "kpf", ""},    {IBV_QPT_UC, RESET, INIT, "kpf", ""},
    {IBV_QPT_UD, RESET, INIT, "kpq", ""},    {IBV_QPT_RC, INIT, INIT, "", "kpf"},
    {IBV_QPT_UC, INIT, INIT, "", "kpf"},     {IBV_QPT_UD, INIT, INIT, "", "kpq"},
    {IBV_QPT_RC, INIT, RTR, "amDPdT", "fk"}, {IBV_QPT_UC, INIT, RTR, "amDP", "fk"},
    {IBV_QPT_UD, INIT, RTR, "", "kq"},       {IBV_QPT_RC, RTR, RTS, "trRSi", "cfTg"},
    {IBV_QPT_UC, RTR, RTS, "S", "cfg"},      {IBV_QPT_UD, RTR, RTS, "S", "cq"},
    {IBV_QPT_RC, RTS, RTS, "", "cfgT"},      {IBV_QPT_UC, RTS, RTS, "", "cfg"},
    {IBV_QPT_UD, RTS, RTS, "", "cq"},        {IBV_QPT_RC, RTS, SQD, "", "n"},
    {IBV_QPT_UC, RTS, SQD, "", "n"},         {IBV_QPT_UD, RTS, SQD, "", "n"},
    {IBV_QPT_RC, SQD, RTS, "", "cfTg"},      {IBV_QPT_UC, SQD, RTS, "", "cfg"},
    {IBV_QPT_UD, SQD, RTS, "", "cq"},        {IBV_QPT_RC, SQD, SQD, "", "patrRidfkTg"},
    {IBV_QPT_UC, SQD, SQD, "", "afkg"},      {IBV_QPT_UD, SQD, SQD, "", "kq"},
    {IBV_QPT_RC, SQE, RTS, "", ""},          {IBV_QPT_UC, SQE, RTS, "", "cf"},
    {IBV_QPT_UD, SQE, RTS, "", "cq"},
};

bool step_of(enum ibv_qp_type type, int from, int to, int *required, int *optional)
{
    *required = *optional = 0;
    if (to == RESET || (to == ERR && from != RESET))
        return true;
    for (size_t i = 0; i < sizeof(expected) / sizeof(*expected); i++)
        if (expected[i].type == type && expected[i].from == from && expected[i].to == to) {
            *required = bits(expected[i].required);
            *optional = bits(expected[i].optional);
            return true;
        }
    return false;
}

int step(struct ibv_qp *qp, int from, int to, int mask)
{
    struct ibv_qp_attr a = right();
    a.qp_state = (enum ibv_qp_state)to;
    a.cur_qp_state = (enum ibv_qp_state)from;
    return ibv_modify_qp(qp, &a, mask);
}

void bring(struct ibv_qp *qp, int to)
{
    static const int way[] = {INIT, RTR, RTS};
    int required, optional, at = RESET;

    assert_int_equal(step(qp, RESET, RESET, IBV_QP_STATE), 0);
    for (size_t i = 0; i < 3 && to != RESET && at != to && !(to == ERR && at == INIT); at = way[i++]) {
        assert_true(step_of(qp->qp_type, at, way[i], &required, &optional));
        assert_int_equal(step(qp, at, way[i], IBV_QP_STATE | required), 0);
    }
    if (to == SQD || to == ERR)
        assert_int_equal(step(qp, at, to, IBV_QP_STATE), 0);
    if (to == SQE) /* SQE is reached by a failed request, not by a step */
        atomic_store(&((struct sv_qp *)qp)->shared->state, SQE);
}

uint32_t state_of(struct ibv_qp *qp)
{
    struct ibv_qp_attr a;
    struct ibv_qp_init_attr init;
    assert_int_equal(ibv_query_qp(qp, &a, IBV_QP_STATE, &init), 0);
    assert_int_equal(a.qp_state, a.cur_qp_state);
    return a.qp_state;
}

int to_rtr(struct ibv_qp *qp, struct ibv_qp_attr *a)
{
    int required, optional;
    bring(qp, INIT);
    step_of(qp->qp_type, INIT, RTR, &required, &optional);
    a->qp_state = IBV_QPS_RTR;
    return ibv_modify_qp(qp, a, IBV_QP_STATE | required);
}

const char *new_directory(void)
{
    static char memory[] = "/dev/shm/softverbs-pairs-XXXXXX", disk[] = "/tmp/softverbs-pairs-XXXXXX";
    const char *directory = mkdtemp(memory);
    return directory ? directory : mkdtemp(disk);
}

int in_child(const char *directory, const char *fabric, const char *profile, int words, const char *const *word, int (*run)(void))
{
    struct sv_why why = {""};
    int status = 1;

    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        if (setenv("SOFTVERBS_DIR", directory, 1) || setenv("SOFTVERBS_FABRIC", fabric, 1) || unsetenv("SOFTVERBS_HOST") ||
            sv_profile_load(profile, &model.profile, &why) || sv_topology_load(words, word, &model.profile, &model.topology, &why) ||
            sf_create(fabric, &model, 1, &why)) {
            fprintf(stderr, "%s: %s\n", fabric, why.text);
            exit(1);
        }
        status = run();
        exit(sf_remove(fabric, true, NULL, &why) != 0 || status != 0);
    }
    return child < 0 || waitpid(child, &status, 0) != child || status != 0;
}
