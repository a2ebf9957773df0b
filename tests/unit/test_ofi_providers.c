/* SPDX-License-Identifier: MIT
 *
 * What weft does with the providers of clouds and supercomputers, none of which is here: a library that offers what their man pages and
 * sources (libfabric 2.1) say, and that refuses hints as libfabric does.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>
#include <stdlib.h>
#include <string.h>

#include "fabric/ofi/provider.h"

#define RMA (FI_RMA | FI_READ | FI_WRITE | FI_REMOTE_READ | FI_REMOTE_WRITE)

static const struct offered {
    const char *name;
    uint64_t caps, mode;
    int mr_mode;
    enum fi_threading threading;
    enum fi_progress progress;
    uint32_t format;
} offered[] = {
    {"efa", FI_MSG | RMA, 0, FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY, FI_THREAD_SAFE, FI_PROGRESS_MANUAL,
     FI_ADDR_EFA},
    {"opx", FI_MSG | RMA, FI_CONTEXT2, FI_MR_VIRT_ADDR, FI_THREAD_ENDPOINT, FI_PROGRESS_MANUAL, FI_ADDR_OPX},
    {"cxi", FI_MSG | RMA, 0, FI_MR_ENDPOINT | FI_MR_ALLOCATED | FI_MR_PROV_KEY, FI_THREAD_SAFE, FI_PROGRESS_MANUAL, FI_ADDR_CXI},
    {"cxi", FI_MSG | RMA, 0, FI_MR_ENDPOINT, FI_THREAD_SAFE, FI_PROGRESS_MANUAL, FI_ADDR_CXI}, /* a second info, with its own keys */
    {"psm3", FI_MSG | RMA, FI_CONTEXT, 0, FI_THREAD_SAFE, FI_PROGRESS_MANUAL, FI_ADDR_PSMX3},
    {"tcp", FI_MSG | RMA, 0, 0, FI_THREAD_SAFE, FI_PROGRESS_AUTO, FI_SOCKADDR_IN},
    {"new", FI_MSG, 0, 0, FI_THREAD_SAFE, FI_PROGRESS_AUTO, FI_FORMAT_UNSPEC}, /* unknown, without RMA */
};
enum { OFFERED = sizeof offered / sizeof offered[0] };

static void info_free(struct fi_info *info)
{
    while (info) {
        struct fi_info *next = info->next;
        free(info->fabric_attr->prov_name);
        free(info->fabric_attr);
        free(info->domain_attr);
        free(info->ep_attr);
        free(info->tx_attr);
        free(info->rx_attr);
        free(info);
        info = next;
    }
}

static void *copied(const void *from, size_t bytes)
{
    void *to = calloc(1, bytes);
    assert_non_null(to);
    if (from)
        memcpy(to, from, bytes);
    return to;
}

static struct fi_info *info_copy(const struct fi_info *from)
{
    struct fi_info *to = copied(from, sizeof *to);
    to->next = NULL;
    to->fabric_attr = copied(from ? from->fabric_attr : NULL, sizeof *to->fabric_attr);
    to->domain_attr = copied(from ? from->domain_attr : NULL, sizeof *to->domain_attr);
    to->ep_attr = copied(from ? from->ep_attr : NULL, sizeof *to->ep_attr);
    to->tx_attr = copied(from ? from->tx_attr : NULL, sizeof *to->tx_attr);
    to->rx_attr = copied(from ? from->rx_attr : NULL, sizeof *to->rx_attr);
    if (to->fabric_attr->prov_name)
        to->fabric_attr->prov_name = strdup(to->fabric_attr->prov_name);
    return to;
}

/* As ofi_check_info() of libfabric: what a provider needs must be among what the program says it can do. */
static bool info_suits(const struct offered *o, const struct fi_info *hints)
{
    const struct fi_domain_attr *d = hints->domain_attr;
    const char *name = hints->fabric_attr->prov_name;
    return (!name || strcmp(name, o->name) == 0) && (hints->caps & ~o->caps) == 0 && (o->mode & ~hints->mode) == 0 &&
           (o->mr_mode & ~d->mr_mode) == 0 && d->threading == FI_THREAD_DOMAIN && /* the least that a program can ask for */
           (d->data_progress != FI_PROGRESS_AUTO || o->progress == FI_PROGRESS_AUTO) && hints->ep_attr->type == FI_EP_RDM &&
           (hints->addr_format == FI_FORMAT_UNSPEC || hints->addr_format == o->format);
}

static int info_get(uint32_t version, const char *node, const char *service, uint64_t flags, const struct fi_info *hints,
                    struct fi_info **out)
{
    struct fi_info **end = out;
    (void)version, (void)service, (void)flags;
    *out = NULL;
    for (int i = 0; i < OFFERED; i++) {
        const struct offered *o = &offered[i];
        if (!info_suits(o, hints) || (node && o->format != FI_SOCKADDR_IN)) /* the others know no such name */
            continue;
        struct fi_info *info = *end = info_copy(NULL);
        end = &info->next;
        info->fabric_attr->prov_name = strdup(o->name);
        info->caps = o->caps | FI_SEND | FI_RECV;
        info->mode = o->mode;
        info->addr_format = o->format;
        info->domain_attr->mr_mode = o->mr_mode;
        info->domain_attr->threading = o->threading;
        info->ep_attr->type = FI_EP_RDM;
    }
    return *out ? 0 : -FI_ENODATA;
}

static const char *text_of(int error)
{
    (void)error;
    return "an error";
}

static const struct ofi_library library = {
    .path = "made up", .getinfo = info_get, .freeinfo = info_free, .dupinfo = info_copy, .strerror = text_of};

static const struct fi_info *choice(struct fi_info *const found[OFI_CHOICES], int n, const char *name)
{
    for (int i = 0; i < n; i++)
        if (strcmp(found[i]->fabric_attr->prov_name, name) == 0)
            return found[i];
    fail_msg("%s is not chosen", name);
    return NULL;
}

/* All of them suit, fast networks before TCP. */
static void test_order(void **state)
{
    (void)state;
    static const char *const order[] = {"cxi", "efa", "psm3", "opx", "tcp"};
    struct fi_info *found[OFI_CHOICES];
    const struct ofi_want want = {.provider = "", .interface = "", .address = "10.0.0.1"};
    int n = ofi_choose(&library, &want, found);
    assert_int_equal(n, sizeof order / sizeof order[0]);
    for (int i = 0; i < n; i++)
        assert_string_equal(found[i]->fabric_attr->prov_name, order[i]);
    while (n)
        info_free(found[--n]);
}

static void test_traits(void **state)
{
    (void)state;
    struct fi_info *found[OFI_CHOICES];
    const struct ofi_want want = {.provider = "efa,opx,cxi,psm3,new", .interface = "", .address = "10.0.0.1"};
    int n = ofi_choose(&library, &want, found);
    assert_int_equal(n, 5);
    struct ofi_traits efa = ofi_traits_of(choice(found, n, "efa")), opx = ofi_traits_of(choice(found, n, "opx")),
                      cxi = ofi_traits_of(choice(found, n, "cxi")), psm3 = ofi_traits_of(choice(found, n, "psm3")),
                      other = ofi_traits_of(choice(found, n, "new"));
    assert_true(efa.rma && efa.local && efa.virtual && efa.hardware && !efa.bind_regions);
    assert_true(opx.rma && !opx.local && opx.virtual && !opx.hardware && !opx.bind_regions);
    assert_true(cxi.rma && !cxi.local && !cxi.virtual && cxi.hardware && cxi.bind_regions); /* the first info: keys are the provider's */
    assert_true(psm3.rma && !psm3.local && !psm3.virtual && !psm3.hardware && !psm3.bind_regions);
    assert_true(!other.rma && other.plain && other.rank == OFI_NEVER);
    const struct ofi_traits *all[] = {&efa, &opx, &cxi, &psm3, &other};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        assert_true(!all[i]->inet && !all[i]->tcp && !all[i]->wakes); /* so each queue is polled */
    while (n)
        info_free(found[--n]);
}

/* `weft devices --networks` tells which of them have never been run. */
static void test_list(void **state)
{
    (void)state;
    struct ofi_listed list[OFI_LISTED_MAX];
    assert_int_equal(ofi_list(&library, list), 0);
    for (int i = 0; list[i].provider[0]; i++) {
        bool never = strcmp(list[i].provider, "tcp") != 0 && strcmp(list[i].provider, "psm3") != 0;
        assert_int_equal(list[i].traits.tried, !never);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_order), cmocka_unit_test(test_traits), cmocka_unit_test(test_list)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
