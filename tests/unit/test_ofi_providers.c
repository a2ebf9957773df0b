/* SPDX-License-Identifier: MIT
 *
 * What weft does with the providers of clouds and supercomputers, none of which is here: a library that offers what their man pages and
 * sources (libfabric 2.1) say, and that refuses hints as libfabric does.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <arpa/inet.h>
#include <cmocka.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fabric/ofi/ofi.h"

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
    {"verbs;ofi_rxm", FI_MSG | RMA, 0, FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY, FI_THREAD_SAFE, FI_PROGRESS_MANUAL,
     FI_SOCKADDR_IN},
    {"prefix", FI_MSG | RMA, FI_MSG_PREFIX, 0, FI_THREAD_SAFE, FI_PROGRESS_MANUAL, FI_FORMAT_UNSPEC},
    {"opx;raw", FI_MSG | RMA, 0, FI_MR_RAW, FI_THREAD_SAFE, FI_PROGRESS_MANUAL, FI_FORMAT_UNSPEC},
};
enum { OFFERED = sizeof offered / sizeof offered[0], ADDRESSES = 40 };

static bool reversed; /* libfabric lists the providers in the opposite order */

/* The host has the addresses 127.0.0.1, 127.0.0.2, ... Providers over IP have an info for each. */
static struct sockaddr_in addresses[ADDRESSES];

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

/* Offered although it needs what the hints do not allow. */
static bool is_rude(const struct offered *o)
{
    return o->mode & FI_MSG_PREFIX || o->mr_mode & FI_MR_RAW;
}

/* As ofi_check_info() of libfabric: what a provider needs must, unless it is rude, be among what the program says it can do. */
static bool info_suits(const struct offered *o, const struct fi_info *hints)
{
    const struct fi_domain_attr *d = hints->domain_attr;
    const char *name = hints->fabric_attr->prov_name;
    return (!name || strcmp(name, o->name) == 0) && (hints->caps & ~o->caps) == 0 &&
           (is_rude(o) || ((o->mode & ~hints->mode) == 0 && (o->mr_mode & ~d->mr_mode) == 0)) &&
           d->threading == FI_THREAD_DOMAIN && /* the least that a program can ask for */
           (d->data_progress != FI_PROGRESS_AUTO || o->progress == FI_PROGRESS_AUTO) && hints->ep_attr->type == FI_EP_RDM &&
           (hints->addr_format == FI_FORMAT_UNSPEC || hints->addr_format == o->format);
}

static int info_get(uint32_t version, const char *node, const char *service, uint64_t flags, const struct fi_info *hints,
                    struct fi_info **out)
{
    struct fi_info **end = out;
    (void)version, (void)service, (void)flags;
    *out = NULL;
    for (int i = 0; i < OFFERED * ADDRESSES; i++) {
        const struct offered *o = &offered[reversed ? OFFERED - 1 - i / ADDRESSES : i / ADDRESSES];
        bool inet = o->format == FI_SOCKADDR_IN;
        if (!info_suits(o, hints) || (node && !inet) || (i % ADDRESSES && !inet)) /* the others know no such name */
            continue;
        struct fi_info *info = *end = info_copy(NULL);
        end = &info->next;
        info->fabric_attr->prov_name = strdup(o->name);
        info->caps = o->caps | FI_SEND | FI_RECV;
        info->mode = o->mode;
        info->addr_format = o->format;
        info->src_addr = inet ? &addresses[i % ADDRESSES] : NULL;
        info->src_addrlen = inet ? sizeof addresses[0] : 0;
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

/* A provider that needs room for its own bytes before each message, or keys longer than 64 bits: weft would give it neither. */
static void test_rude(void **state)
{
    (void)state;
    struct fi_info *found[OFI_CHOICES];
    const struct ofi_want want = {.provider = "prefix,opx;raw", .interface = "", .address = "10.0.0.1"};
    assert_int_equal(ofi_choose(&library, &want, found), -ENODEV);
    assert_false(ofi_has(&library, "prefix"));
    assert_false(ofi_has(&library, "opx;raw"));
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

/* --- what `weft devices --networks` lists --- */

static uint32_t listed(const char *provider, const char *interface, struct ofi_listed **list)
{
    const struct ofi_want want = {.provider = provider, .interface = interface, .address = ""};
    int n = ofi_list(&library, &want, list);
    assert_true(n > 0);
    return (uint32_t)n;
}

static const struct ofi_listed *row(const struct ofi_listed *list, uint32_t n, const char *provider, const char *address)
{
    for (uint32_t i = 0; i < n; i++)
        if (strcmp(list[i].provider, provider) == 0 && strcmp(list[i].address, address) == 0)
            return &list[i];
    fail_msg("%s at %s is not in the list", provider, address);
    return NULL;
}

static enum ofi_use use_of(const char *provider, const char *interface, const char *name, const char *address)
{
    struct ofi_listed *list;
    uint32_t n = listed(provider, interface, &list);
    enum ofi_use use = row(list, n, name, address)->use;
    free(list);
    return use;
}

/* The list is complete and sorted, even if the host has many addresses, and libfabric lists the best provider last. It tells which
 * providers have never been run. */
static void test_list(void **state)
{
    (void)state;
    static const char *const order[] = {"cxi", "efa", "psm3", "opx", "tcp"};
    for (int i = 0; i < 2; i++) {
        struct ofi_listed *list;
        reversed = i == 1;
        uint32_t n = listed("", "", &list);
        assert_int_equal(n, 4 + 2 * ADDRESSES); /* tcp and verbs;ofi_rxm at each address; `new` has no RMA */
        for (uint32_t k = 0; k < 5; k++)
            assert_string_equal(list[k].provider, order[k]);
        for (uint32_t k = 0; k < n; k++) {
            bool tried = strcmp(list[k].provider, "tcp") == 0 || strcmp(list[k].provider, "psm3") == 0 ||
                         strcmp(list[k].provider, OFI_VERBS_RXM) == 0;
            assert_int_equal(list[k].traits.tried, tried);
            assert_int_equal(list[k].use, strcmp(list[k].provider, OFI_VERBS_RXM) == 0 ? OFI_BY_NAME : OFI_USED);
        }
        free(list);
    }
    reversed = false;
}

static void test_list_of_named(void **state)
{
    (void)state;
    struct ofi_listed *list;
    uint32_t n = listed("tcp,absent,new,efa", "", &list);
    const struct ofi_listed *tcp = row(list, n, "tcp", "127.0.0.1"), *new = row(list, n, "new", ""), *efa = row(list, n, "efa", "");
    assert_true(tcp->use == OFI_USED && new->use == OFI_USED && efa->use == OFI_USED);
    assert_true(tcp->order < new->order &&new->order < efa->order);
    assert_int_equal(row(list, n, "cxi", "")->use, OFI_OTHER_PROVIDER);
    free(list);
    unsetenv("FI_OFI_RXM_USE_SRX");
    assert_int_equal(use_of(OFI_VERBS_RXM, "", OFI_VERBS_RXM, "127.0.0.1"), OFI_LACKS_SRX);
    setenv("FI_OFI_RXM_USE_SRX", "1", 1);
    assert_int_equal(use_of(OFI_VERBS_RXM, "", OFI_VERBS_RXM, "127.0.0.1"), OFI_USED);
    unsetenv("FI_OFI_RXM_USE_SRX");
}

static void test_has(void **state)
{
    (void)state;
    assert_true(ofi_has(&library, "tcp"));
    assert_true(ofi_has(&library, "new")); /* without RMA */
    assert_false(ofi_has(&library, "absent"));
}

/* As ofi_choose() does: a provider without IP addresses is only used if those before it have no address there. */
static void test_list_at_interface(void **state)
{
    (void)state;
    assert_int_equal(use_of("", "127.0.0.2", "tcp", "127.0.0.2"), OFI_USED);
    assert_int_equal(use_of("", "127.0.0.2", "tcp", "127.0.0.1"), OFI_OTHER_INTERFACE);
    assert_int_equal(use_of("", "127.0.0.2", "efa", ""), OFI_OTHER_INTERFACE);
    assert_int_equal(use_of("efa,tcp", "127.0.0.2", "efa", ""), OFI_USED);
    assert_int_equal(use_of("tcp,efa", "127.0.0.2", "efa", ""), OFI_OTHER_INTERFACE);
    assert_int_equal(use_of("", "127.0.0.200", "efa", ""), OFI_USED);
    struct ofi_listed *list;
    const struct ofi_want nowhere = {.provider = "", .interface = "nowhere0", .address = ""};
    assert_int_equal(ofi_list(&library, &nowhere, &list), -ENODEV);
}

/* Peers' addresses have the length of this node's address; names, such as those of `shm`, may have any. */
static void test_address_fits(void **state)
{
    struct fi_info info = {.addr_format = FI_ADDR_STR};
    struct ofi o = {.info = &info, .address_bytes = sizeof "fi_shm://9999"};
    const uint8_t name[] = "fi_shm://10000";
    (void)state;
    assert_true(ofi_address_fits(&o, name, sizeof name));
    assert_false(ofi_address_fits(&o, name, sizeof name - 1)); /* without its end */
    assert_false(ofi_address_fits(&o, name, 0));
    info.addr_format = FI_SOCKADDR_IN;
    assert_false(ofi_address_fits(&o, name, sizeof name));
    assert_true(ofi_address_fits(&o, name, o.address_bytes));
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_order),
                                       cmocka_unit_test(test_rude),
                                       cmocka_unit_test(test_traits),
                                       cmocka_unit_test(test_list),
                                       cmocka_unit_test(test_list_of_named),
                                       cmocka_unit_test(test_has),
                                       cmocka_unit_test(test_list_at_interface),
                                       cmocka_unit_test(test_address_fits)};
    for (uint32_t i = 0; i < ADDRESSES; i++)
        addresses[i] = (struct sockaddr_in){.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK + i)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
