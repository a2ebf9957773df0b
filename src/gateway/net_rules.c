/* SPDX-License-Identifier: MIT
 *
 * The addresses that askers of the net service may reach. The rules of WEFT_NET_RULES come first, then the default rules; the first rule
 * that matches decides. The rules are checked with the resolved address to which the gateway will connect.
 */
#include "gateway/net.h"

#include <arpa/inet.h>
#include <ctype.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define RULES_MAX 1024u

enum rule_host { RULE_ANY, RULE_NET, RULE_NAME };
struct rule {
    bool allow, preset; /* preset: a default rule */
    enum rule_host host;
    uint8_t family; /* RULE_NET: 4 or 6 */
    uint8_t bits;
    uint8_t net[16];
    uint16_t port, last_port;    /* the ports to which the rule applies; 0 to 65535: all */
    char name[NET_HOST_MAX + 1]; /* RULE_NAME: the name in lower case; ".example.com" matches all names below example.com */
    char text[NET_HOST_MAX + 32];
};
struct net_rules {
    size_t count;
    struct rule rule[];
};

/* The default rules. They are checked in this order, after the rules of WEFT_NET_RULES. An address that matches no rule is allowed. */
static const struct {
    const char *net, *what;
} presets[] = {
    {"0.0.0.0/8", "the gateway itself"},
    {"127.0.0.0/8", "the gateway's loopback"},
    {"169.254.0.0/16", "link-local addresses, and the metadata of cloud machines"},
    {"100.100.100.200/32", "the metadata of cloud machines"},
    {"168.63.129.16/32", "the metadata of cloud machines"},
    {"::/128", "the gateway itself"},
    {"::1/128", "the gateway's loopback"},
    {"fe80::/10", "link-local addresses"},
    {"fd00:ec2::254/128", "the metadata of cloud machines"},
    {"fd20:ce::254/128", "the metadata of cloud machines"},
    {"fd00:c1::a9fe:a9fe/128", "the metadata of cloud machines"},
    {"fd00:42::42/128", "the metadata of cloud machines"},
    {"224.0.0.0/4", "a multicast address"},
    {"255.255.255.255/32", "the broadcast address"},
    {"ff00::/8", "a multicast address"},
};
#define PRESETS (sizeof presets / sizeof presets[0])

/* --- addresses --- */

/* An IPv6 address that begins with these bytes stands for an IPv4 address. */
static const uint8_t mapped[12] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};

bool net_address_take(struct net_address *out, const struct sockaddr *from, socklen_t len)
{
    memset(out, 0, sizeof *out);
    if (from->sa_family == AF_INET && len >= (socklen_t)sizeof out->v4) {
        memcpy(&out->v4, from, sizeof out->v4);
        out->len = sizeof out->v4;
        return true;
    }
    if (from->sa_family != AF_INET6 || len < (socklen_t)sizeof out->v6)
        return false;
    memcpy(&out->v6, from, sizeof out->v6);
    out->len = sizeof out->v6;
    if (memcmp(out->v6.sin6_addr.s6_addr, mapped, sizeof mapped) == 0) {
        struct sockaddr_in v4;
        memset(&v4, 0, sizeof v4);
        v4.sin_family = AF_INET;
        v4.sin_port = out->v6.sin6_port;
        memcpy(&v4.sin_addr, out->v6.sin6_addr.s6_addr + 12, 4);
#if defined(__APPLE__)
        v4.sin_len = sizeof v4;
#endif
        memset(out, 0, sizeof *out);
        out->v4 = v4;
        out->len = sizeof v4;
    }
    return true;
}

void net_address_text(const struct net_address *a, char *out, size_t len)
{
    char host[64] = "?", port[8] = "?";
    if (getnameinfo(&a->any, a->len, host, sizeof host, port, sizeof port, NI_NUMERICHOST | NI_NUMERICSERV))
        snprintf(host, sizeof host, "?");
    snprintf(out, len, a->any.sa_family == AF_INET6 ? "[%s]:%s" : "%s:%s", host, port);
}

/* --- reading --- */

static int rule_wrong(const char *text, const char *why)
{
    return base_fail(-EINVAL,
                     "net rule '%s': %s; write allow=WHAT or deny=WHAT, where WHAT is an address, a network, a name, *.NAME or *, with "
                     ":PORT or :PORT-PORT at its end or not, as in deny=10.0.0.0/8, allow=[fd00::1]:443, deny=*:25",
                     text, why);
}

/* Splits "HOST:PORTS" at the colon before the ports. An IPv6 address with ports is in brackets. */
static int rule_ports(struct rule *r, char *what)
{
    char *close = what[0] == '[' ? strchr(what, ']') : NULL, *colon = strchr(close ? close : what, ':');
    int64_t first = 0, last = 65535;
    r->last_port = 65535;
    if (!close && colon && strchr(colon + 1, ':'))
        colon = NULL; /* an IPv6 address without ports */
    if (close) {
        if (close[1] && close[1] != ':' && close[1] != '/')
            return rule_wrong(r->text, "an unexpected character after ']'");
        memmove(what, what + 1, strlen(what)); /* moves the final zero byte, too */
        close--;
        if (colon)
            colon--;
        memmove(close, close + 1, strlen(close));
        if (colon)
            colon--;
    }
    if (!colon)
        return 0;
    *colon = '\0';
    char *dash = strchr(colon + 1, '-');
    if (dash)
        *dash = '\0';
    if (base_parse_number(colon + 1, 1, 65535, &first) || (dash && base_parse_number(dash + 1, first, 65535, &last)))
        return rule_wrong(r->text, "its port is not a number or a range from 1 to 65535");
    r->port = (uint16_t)first;
    r->last_port = (uint16_t)(dash ? last : first);
    return 0;
}

/* Reads an address or a network. Returns false if the text is neither. */
static bool rule_net(struct rule *r, const char *what)
{
    char host[64];
    int64_t bits;
    const char *slash = strchr(what, '/');
    size_t n = slash ? (size_t)(slash - what) : strlen(what);
    if (n >= sizeof host)
        return false;
    memcpy(host, what, n);
    host[n] = '\0';
    r->family = inet_pton(AF_INET, host, r->net) == 1 ? 4 : inet_pton(AF_INET6, host, r->net) == 1 ? 6 : 0;
    r->bits = r->family == 4 ? 32 : 128;
    if (!r->family || (slash && base_parse_number(slash + 1, 0, r->bits, &bits)))
        return false;
    r->bits = slash ? (uint8_t)bits : r->bits;
    if (r->family == 6 && r->bits >= 96 && memcmp(r->net, mapped, sizeof mapped) == 0) {
        memmove(r->net, r->net + 12, 4);
        r->family = 4;
        r->bits = (uint8_t)(r->bits - 96);
    }
    r->host = RULE_NET;
    return true;
}

/* Whether `part`, the last part of a name, is a number. If it is, the text is not a name, but an incomplete address such as "127.1". */
static bool is_number(const char *part)
{
    bool hex = part[0] == '0' && part[1] == 'x';
    return part[0] && part[strspn(part, hex ? "0123456789abcdefx" : "0123456789")] == '\0';
}

static int rule_read(struct rule *r, const char *text, size_t len)
{
    char what[sizeof r->text];
    *r = (struct rule){.allow = true};
    if (len >= sizeof r->text)
        return base_fail(-EINVAL, "a net rule has %zu bytes, but at most %zu are possible: shorten it", len, sizeof r->text - 1);
    memcpy(r->text, text, len);
    r->text[len] = '\0';
    size_t word = strcspn(r->text, "=");
    r->allow = word == 5 && memcmp(r->text, "allow", 5) == 0;
    if (!r->text[word] || (!r->allow && (word != 4 || memcmp(r->text, "deny", 4) != 0)))
        return rule_wrong(r->text, "it begins with neither allow= nor deny=");
    snprintf(what, sizeof what, "%s", r->text + word + 1);
    int rc = rule_ports(r, what);
    if (rc)
        return rc;
    if (strcmp(what, "*") == 0)
        r->host = RULE_ANY;
    else if (!rule_net(r, what)) {
        const char *name = what[0] == '*' ? what + 1 : what;
        size_t n = strlen(name);
        if (n == 0 || n > NET_HOST_MAX || strpbrk(name, "*/:[] \\") || (name != what && name[0] != '.'))
            return rule_wrong(r->text, "its host has a character that is not allowed, or is too long");
        r->host = RULE_NAME;
        for (size_t i = 0; i <= n; i++)
            r->name[i] = (char)tolower((unsigned char)name[i]);
        if (r->name[n - 1] == '.')
            r->name[n - 1] = '\0';
        const char *dot = strrchr(r->name, '.');
        if (!r->name[0] || is_number(dot ? dot + 1 : r->name))
            return rule_wrong(r->text, "its host is neither a name nor a complete address");
    }
    return 0;
}

int net_rules_read(const char *text, struct net_rules **out)
{
    size_t count = PRESETS + 1;
    for (const char *c = text; *c; c++)
        count += *c == ',';
    *out = NULL;
    if (count > RULES_MAX + PRESETS)
        return base_fail(-EINVAL, "there are %zu net rules, but at most %u are possible: remove some", count - PRESETS, RULES_MAX);
    struct net_rules *all = calloc(1, sizeof *all + count * sizeof all->rule[0]);
    if (!all)
        return base_fail(-ENOMEM, "no memory for %zu net rules" BASE_MEMORY_HINT, count);
    int rc = 0;
    for (const char *p = text; *p && !rc;) {
        size_t len = strcspn(p, ",");
        if (len)
            rc = rule_read(&all->rule[all->count++], p, len);
        p += len + (p[len] == ',');
    }
    for (size_t i = 0; i < PRESETS && !rc; i++) {
        struct rule *r = &all->rule[all->count++];
        *r = (struct rule){.preset = true, .last_port = 65535};
        snprintf(r->text, sizeof r->text, "%s", presets[i].what);
        if (!rule_net(r, presets[i].net))
            rc = base_fail(-EINVAL, "the built-in rule for %s is invalid" BASE_BUG_HINT, presets[i].net); /* cannot happen */
    }
    if (rc) {
        free(all);
        return rc;
    }
    *out = all;
    return 0;
}

void net_rules_free(struct net_rules *all)
{
    free(all);
}

/* --- checking --- */

static bool net_holds(const struct rule *r, unsigned family, const uint8_t *bytes)
{
    unsigned whole = r->bits / 8, rest = r->bits % 8;
    return r->family == family && memcmp(r->net, bytes, whole) == 0 &&
           (!rest || !((r->net[whole] ^ bytes[whole]) & (0xff << (8 - rest) & 0xff)));
}

static bool name_fits(const struct rule *r, const char *host)
{
    size_t have = strlen(host), want = strlen(r->name);
    if (have && host[have - 1] == '.')
        have--;
    if (r->name[0] == '.' ? have <= want : have != want)
        return false;
    for (size_t i = 0; i < want; i++)
        if (tolower((unsigned char)host[have - want + i]) != r->name[i])
            return false;
    return true;
}

/* The IPv4 address that is embedded in an IPv6 address (NAT64, 6to4, SIIT, "IPv4-compatible"); NULL: there is none. Packets may reach this
 * IPv4 address, so the rules for it apply, too. */
static const uint8_t *contained(const uint8_t *v6)
{
    static const uint8_t translated[12] = {0, 0x64, 0xff, 0x9b}, own_translator[6] = {0, 0x64, 0xff, 0x9b, 0, 1}, compatible[12] = {0},
                         siit[12] = {[8] = 0xff, [9] = 0xff}, six_to_four[2] = {0x20, 0x02};
    bool old = memcmp(v6, compatible, 12) == 0 && (v6[12] || v6[13] || v6[14]);
    if (memcmp(v6, six_to_four, 2) == 0)
        return v6 + 2;
    return old || memcmp(v6, translated, 12) == 0 || memcmp(v6, own_translator, 6) == 0 || memcmp(v6, siit, 12) == 0 ? v6 + 12 : NULL;
}

bool net_rules_deny_names(const struct net_rules *all)
{
    for (size_t i = 0; i < all->count; i++)
        if (!all->rule[i].allow && all->rule[i].host == RULE_NAME)
            return true;
    return false;
}

/* Whether a rule matches the target, apart from ports. An allow rule for a name matches only the name that the asker gave, because the
 * owner of a name can make it an alias of any other name. A deny rule also matches the canonical name; then `*behind` becomes true. */
static bool rule_fits(const struct rule *r, const struct net_target *t, bool *behind)
{
    bool v4 = t->to->any.sa_family == AF_INET;
    const uint8_t *bytes = v4 ? (const uint8_t *)&t->to->v4.sin_addr : t->to->v6.sin6_addr.s6_addr, *inner = v4 ? NULL : contained(bytes);
    *behind = false;
    if (r->host == RULE_ANY)
        return true;
    if (r->host == RULE_NET)
        return net_holds(r, v4 ? 4 : 6, bytes) || (inner && net_holds(r, 4, inner));
    if (name_fits(r, t->host))
        return true;
    *behind = !r->allow && t->canonical && name_fits(r, t->canonical);
    return *behind;
}

static void refuse(const struct rule *r, const char *behind, char *why, size_t len)
{
    if (r->preset)
        snprintf(why, len, "a default rule of the gateway forbids %s; a rule allow=ADDRESS in WEFT_NET_RULES of the gateway permits it",
                 r->text);
    else if (behind)
        snprintf(why, len, "rule %s of the gateway forbids it, because the name stands for %s", r->text, behind);
    else
        snprintf(why, len, "rule %s of the gateway forbids it", r->text);
}

bool net_rules_allow(const struct net_rules *all, const struct net_target *t, char *why, size_t len)
{
    bool named = false, behind;
    uint16_t port = ntohs(t->to->any.sa_family == AF_INET ? t->to->v4.sin_port : t->to->v6.sin6_port);
    why[0] = '\0';
    for (size_t i = 0; i < all->count; i++) {
        const struct rule *r = &all->rule[i];
        if (port < r->port || port > r->last_port || (r->preset ? t->near : named) || !rule_fits(r, t, &behind))
            continue;
        if (!r->allow)
            refuse(r, behind ? t->canonical : NULL, why, len);
        if (r->allow && r->host != RULE_NET)
            /* an allow rule for a name or for * does not override the default rules, because the owner of a name chooses its addresses */
            named = true;
        else
            return r->allow;
    }
    return true;
}
