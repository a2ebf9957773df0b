/* SPDX-License-Identifier: MIT
 *
 * libfabric and its providers: lists the providers of this host, and chooses the one that weft uses. This file opens no device.
 */
#ifndef WEFT_OFI_PROVIDER_H
#define WEFT_OFI_PROVIDER_H

#include <stdbool.h>
#include <stdint.h>

#include <rdma/fabric.h>

struct ofi_library {
    char path[256]; /* the file, if the system tells it; else the name by which it was loaded */
    uint32_t (*version)(void);
    int (*getinfo)(uint32_t version, const char *node, const char *service, uint64_t flags, const struct fi_info *hints,
                   struct fi_info **info);
    void (*freeinfo)(struct fi_info *info);
    struct fi_info *(*dupinfo)(const struct fi_info *info);
    int (*fabric)(struct fi_fabric_attr *attr, struct fid_fabric **fabric, void *context);
    const char *(*strerror)(int errnum);
};
/* Loads libfabric, once for the process: the file that WEFT_OFI_LIBRARY names, else a file with one of its usual names. -ENOENT: there is
 * none, or it is too old. */
int ofi_load(const struct ofi_library **out);

/* The properties of a provider that weft depends on. */
struct ofi_traits {
    bool rma;          /* supports RMA, and a put is complete only when its bytes are at the target */
    bool local;        /* local memory must be registered */
    bool virtual;      /* RMA names the target by its virtual address, not by an offset */
    bool hardware;     /* registering memory is expensive, so weft registers it once for all peers, with keys that the provider chooses */
    bool bind_regions; /* regions belong to the endpoint (FI_MR_ENDPOINT) */
    bool plain;        /* uses an ordinary network, where others could read the data */
    bool inet;         /* the provider's addresses are IP addresses */
    bool wakes;        /* the completion queue's descriptor becomes readable when something arrives; false: the queue must be polled */
    bool tcp;          /* uses connections over TCP: the kernel sends a connection's bytes even after it was closed */
    bool tried;        /* weft was run with this provider */
    bool loses;        /* RMA requests to an endpoint that is gone never end, and later requests, also to other nodes, wait for them */
    bool locks;        /* nodes hold locks in each other's memory: if a node is killed while it holds one, the other node hangs */
    uint32_t rank;     /* the smallest rank is the best; OFI_NEVER: used only if the user names the provider */
};
#define OFI_NEVER 1000u
bool ofi_is_fast(const char *provider); /* the provider's network is faster than Ethernet, and weft uses it without being told to */

struct ofi_want {
    const char *provider;  /* libfabric's names, best first and with commas between ("tcp;ofi_rxm", or only "tcp"); "": weft's own order */
    const char *interface; /* a network interface, or an address of this host; "": `address` is used instead */
    const char *address;   /* numeric address at which peers reach this node; "": all peers are on this host */
};
#define OFI_CHOICES       8u  /* the most providers that a node offers to its peers */
#define OFI_PROVIDER_NAME 48u /* bytes of a provider's name, with the null */
/* The providers that this node can use, best first, each name once. The caller frees each by lib->freeinfo(). Returns how many, or a
 * negative errno with base_fail(). */
int ofi_choose(const struct ofi_library *lib, const struct ofi_want *want, struct fi_info *found[OFI_CHOICES]);
struct ofi_traits ofi_traits_of(const struct fi_info *info);

#define OFI_VERBS_RXM "verbs;ofi_rxm"
bool ofi_lacks_srx(const char *provider); /* weft refuses this provider, because FI_OFI_RXM_USE_SRX=1 is not set */

/* For `weft devices`: what the settings say about a provider at one of its addresses. */
enum ofi_use {
    OFI_USED,
    OFI_BY_NAME,         /* used only if WEFT_OFI_PROVIDER names the provider, but that variable is not set */
    OFI_OTHER_PROVIDER,  /* WEFT_OFI_PROVIDER names only others */
    OFI_OTHER_INTERFACE, /* WEFT_OFI_INTERFACE has another address */
    OFI_LACKS_SRX        /* see ofi_lacks_srx() */
};
struct ofi_listed {
    char provider[OFI_PROVIDER_NAME];
    char interface[48], address[64];
    struct ofi_traits traits;
    enum ofi_use use;
    uint32_t order; /* the provider's position in WEFT_OFI_PROVIDER times OFI_PLACE, plus a number below OFI_PLACE; or OFI_UNNAMED */
};
#define OFI_PLACE   (UINT32_C(1) << 16)
#define OFI_UNNAMED UINT32_MAX
/* Lists every provider that weft could use, best first, with each of its addresses. `want` has the settings; its address is not used. The
 * caller frees *list. Returns how many, at least 1, or a negative errno with base_fail(). */
int ofi_list(const struct ofi_library *lib, const struct ofi_want *want, struct ofi_listed **list);
/* Whether libfabric has a provider of this name that weft could use. */
bool ofi_has(const struct ofi_library *lib, const char *provider);
/* Prints an address as text, such as "tcp over eth0 10.0.0.1". */
void ofi_print_address(const struct fi_info *info, const void *address, size_t len, char *out, size_t room);

#endif
