/* SPDX-License-Identifier: MIT
 *
 * Counts how many objects of a device are in use. The verbs API has no such query; Linux's kernel answers over netlink.
 */
#include <string.h>

#include "verbs/verbs.h"

#if defined(__linux__)
#include <linux/netlink.h>
#include <rdma/rdma_netlink.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

static const struct {
    const char *name;
    size_t at;
} counters[] = {
    {"qp", offsetof(struct verbs_usage, qps)}, {"pd", offsetof(struct verbs_usage, pds)},   {"mr", offsetof(struct verbs_usage, regions)},
    {"cq", offsetof(struct verbs_usage, cqs)}, {"srq", offsetof(struct verbs_usage, srqs)}, {"ctx", offsetof(struct verbs_usage, contexts)},
};

/* Returns the netlink attribute at `at`; NULL if it does not end before `end`. */
static const struct nlattr *attribute(const uint8_t *at, const uint8_t *end, const uint8_t **next)
{
    const struct nlattr *a = (const void *)at;
    if ((size_t)(end - at) < sizeof *a || a->nla_len < sizeof *a || a->nla_len > end - at)
        return NULL;
    size_t step = NLA_ALIGN(a->nla_len);
    *next = step > (size_t)(end - at) ? end : at + step;
    return a;
}

static const uint8_t *content(const struct nlattr *a, size_t *len)
{
    *len = a->nla_len - sizeof *a;
    return (const uint8_t *)(a + 1);
}

static bool says(const struct nlattr *a, const char *text)
{
    size_t len;
    const uint8_t *at = content(a, &len);
    return len == strlen(text) + 1 && memcmp(at, text, len) == 0;
}

static void one_counter(const struct nlattr *entry, struct verbs_usage *out)
{
    size_t len, n;
    const uint8_t *at = content(entry, &len), *end = at + len, *next;
    const struct nlattr *name = NULL, *value = NULL, *a;
    for (; (a = attribute(at, end, &next)); at = next) {
        if ((a->nla_type & NLA_TYPE_MASK) == RDMA_NLDEV_ATTR_RES_SUMMARY_ENTRY_NAME)
            name = a;
        else if ((a->nla_type & NLA_TYPE_MASK) == RDMA_NLDEV_ATTR_RES_SUMMARY_ENTRY_CURR)
            value = a;
    }
    for (size_t i = 0; name && value && i < sizeof counters / sizeof counters[0]; i++) {
        const uint8_t *number = content(value, &n);
        int64_t count;
        if (n == sizeof count && says(name, counters[i].name)) {
            memcpy(&count, number, sizeof count);
            memcpy((char *)out + counters[i].at, &count, sizeof count);
        }
    }
}

/* Reads the kernel's message about one device. Returns true if it is about `device`. */
static bool one_device(const uint8_t *at, const uint8_t *end, const char *device, struct verbs_usage *out)
{
    const struct nlattr *a, *summary = NULL;
    const uint8_t *next;
    bool ours = false;
    size_t len;
    for (; (a = attribute(at, end, &next)); at = next) {
        if ((a->nla_type & NLA_TYPE_MASK) == RDMA_NLDEV_ATTR_DEV_NAME)
            ours = says(a, device);
        else if ((a->nla_type & NLA_TYPE_MASK) == RDMA_NLDEV_ATTR_RES_SUMMARY)
            summary = a;
    }
    if (!ours || !summary)
        return false;
    at = content(summary, &len);
    for (end = at + len; (a = attribute(at, end, &next)); at = next)
        one_counter(a, out);
    return true;
}

static int usage_ask(int fd)
{
    struct nlmsghdr h = {.nlmsg_len = sizeof h,
                         .nlmsg_flags = NLM_F_REQUEST | NLM_F_DUMP,
                         .nlmsg_type = RDMA_NL_GET_TYPE(RDMA_NL_NLDEV, RDMA_NLDEV_CMD_RES_GET)};
    struct sockaddr_nl kernel = {.nl_family = AF_NETLINK};
    struct timeval second = {.tv_sec = 1};
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &second, sizeof second);
    return sendto(fd, &h, sizeof h, 0, (struct sockaddr *)&kernel, sizeof kernel) == sizeof h ? 0 : -errno;
}

/* Receives the whole answer. Returns 1 if it contains the device. */
static int usage_hear(int fd, const char *device, struct verbs_usage *out)
{
    _Alignas(struct nlmsghdr) uint8_t buffer[16384];
    bool found = false;
    for (;;) {
        ssize_t n = recv(fd, buffer, sizeof buffer, 0);
        if (n < 0)
            return -errno;
        const uint8_t *at = buffer, *end = buffer + n;
        while ((size_t)(end - at) >= sizeof(struct nlmsghdr)) {
            const struct nlmsghdr *h = (const void *)at;
            if (h->nlmsg_len < sizeof *h || h->nlmsg_len > (size_t)(end - at))
                return -EBADMSG;
            if (h->nlmsg_type == NLMSG_DONE)
                return found;
            if (h->nlmsg_type == NLMSG_ERROR)
                return -ENOTSUP;
            found |= one_device(at + NLMSG_HDRLEN, at + h->nlmsg_len, device, out);
            size_t step = NLMSG_ALIGN(h->nlmsg_len);
            at = step > (size_t)(end - at) ? end : at + step;
        }
        if (n == 0)
            return -EBADMSG;
    }
}

static int usage_count(const char *device, struct verbs_usage *out)
{
    int fd = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_RDMA);
    if (fd < 0)
        return -ENOTSUP;
    int rc = usage_ask(fd);
    if (rc == 0)
        rc = usage_hear(fd, device, out);
    close(fd);
    return rc == 1 ? 0 : -ENOTSUP;
}
#else
static int usage_count(const char *device, struct verbs_usage *out)
{
    (void)device, (void)out;
    return -ENOTSUP;
}
#endif

int verbs_usage(const char *device, struct verbs_usage *out)
{
    static const struct verbs_usage unknown = {-1, -1, -1, -1, -1, -1};
    char plain[64];
    *out = unknown;
    size_t n = strcspn(device, ":"); /* "mlx5_0:2" means port 2 of the device "mlx5_0" */
    if (n >= sizeof plain)
        return -ENOTSUP;
    memcpy(plain, device, n);
    plain[n] = '\0';
    int rc = usage_count(plain, out);
    if (rc)
        *out = unknown;
    return rc;
}
