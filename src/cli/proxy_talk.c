/* SPDX-License-Identifier: MIT
 *
 * Parses the requests of a proxy's clients and writes the replies: see proxy_talk.h.
 */
#include "cli/proxy_talk.h"

#include <arpa/inet.h>
#include <errno.h>
#include <sodium.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "base/base.h"

enum { SOCKS_VERSION = 5, SOCKS_NO_AUTH = 0, SOCKS_PASSWORD = 2, SOCKS_NO_METHOD = 0xff, SOCKS_CONNECT = 1, SOCKS_ASSOCIATE = 3 };
enum { SOCKS_IPV4 = 1, SOCKS_NAME = 3, SOCKS_IPV6 = 4 };
enum { SOCKS_OK, SOCKS_FAILURE, SOCKS_DENIED, SOCKS_NO_NET, SOCKS_NO_HOST, SOCKS_REFUSED, SOCKS_LATE, SOCKS_NO_COMMAND, SOCKS_NO_TYPE };

/* --- shared by SOCKS5 and HTTP --- */

static void put(struct talk_reply *r, const void *bytes, size_t n)
{
    if (n > sizeof r->at - r->bytes)
        n = sizeof r->at - r->bytes; /* cannot happen, because the buffer has room for the largest head */
    memcpy(r->at + r->bytes, bytes, n);
    r->bytes += n;
}

static void put_text(struct talk_reply *r, const char *text)
{
    put(r, text, strlen(text));
}

/* Compares in constant time, so that the time does not tell how many bytes of a password were right. */
static bool same(const char *want, const uint8_t *got, size_t len)
{
    char a[256] = "", b[256] = "";
    if (len >= sizeof b)
        return false;
    snprintf(a, sizeof a, "%s", want);
    memcpy(b, got, len);
    return sodium_memcmp(a, b, sizeof a) == 0 && strlen(want) == len;
}

/* --- SOCKS5 --- */

/* Writes an address such as "10.0.0.1:80" as type, address and port of SOCKS5 from at[3] on. Returns the length, including the first three
 * bytes. */
static size_t socks_local(uint8_t at[22], const char *local)
{
    size_t n = 10;
    char host[64];
    const char *colon = local ? strrchr(local, ':') : NULL;
    memset(at + 4, 0, 18);
    at[3] = SOCKS_IPV4;
    int64_t port = 0;
    if (colon && base_parse_number(colon + 1, 0, 65535, &port) == 0) {
        bool v6 = local[0] == '[';
        snprintf(host, sizeof host, "%.*s", (int)(colon - local) - 2 * v6, local + v6);
        if (v6 && inet_pton(AF_INET6, host, at + 4) == 1) {
            at[3] = SOCKS_IPV6;
            n = 22;
        } else if (v6 || inet_pton(AF_INET, host, at + 4) != 1) {
            memset(at + 4, 0, 4);
        }
        at[n - 2] = (uint8_t)(port >> 8);
        at[n - 1] = (uint8_t)port;
    }
    return n;
}

static void socks_reply(struct talk_reply *r, uint8_t code, const char *local)
{
    uint8_t at[22] = {SOCKS_VERSION, code};
    put(r, at, socks_local(at, local));
}

static enum talk_next socks_methods(struct talk *t, const uint8_t *in, size_t bytes, size_t *taken, struct talk_reply *reply)
{
    if (bytes < 2 || bytes < 2u + in[1])
        return TALK_MORE;
    *taken = 2u + in[1];
    /* If the proxy has no password, it accepts any password, because some clients always send one. */
    bool none = memchr(in + 2, SOCKS_NO_AUTH, in[1]), password = memchr(in + 2, SOCKS_PASSWORD, in[1]);
    uint8_t method = !t->user && none ? SOCKS_NO_AUTH : password ? SOCKS_PASSWORD : SOCKS_NO_METHOD;
    put(reply, (uint8_t[]){SOCKS_VERSION, method}, 2);
    t->state = method == SOCKS_PASSWORD ? TALK_SOCKS_PASSWORD : TALK_SOCKS_REQUEST;
    return method == SOCKS_NO_METHOD ? TALK_REFUSE : TALK_REPLY;
}

static enum talk_next socks_password(struct talk *t, const uint8_t *in, size_t bytes, size_t *taken, struct talk_reply *reply)
{
    if (bytes < 2 || bytes < 3u + in[1] || bytes < 3u + in[1] + in[2 + in[1]])
        return TALK_MORE;
    size_t user = in[1], password = in[2 + user];
    *taken = 3 + user + password;
    bool right = in[0] == 1;
    if (t->user) {
        bool users = same(t->user, in + 2, user), passwords = same(t->password, in + 3 + user, password);
        right = right && users && passwords;
    }
    put(reply, (uint8_t[]){1, right ? 0 : 1}, 2);
    t->state = TALK_SOCKS_REQUEST;
    return right ? TALK_REPLY : TALK_REFUSE;
}

static enum talk_next socks_refuse(struct talk_reply *reply, uint8_t code)
{
    socks_reply(reply, code, NULL);
    return TALK_REFUSE;
}

/* Reads type, address and port of SOCKS5 at `in`. Returns the length of all three, 0 if they are not complete, or SIZE_MAX if they are
 * invalid, for example because the name is empty. */
static size_t socks_address(const uint8_t *in, size_t bytes, char host[256], uint32_t *port)
{
    if (bytes < 2)
        return 0;
    size_t n = in[0] == SOCKS_IPV4 ? 4 : in[0] == SOCKS_IPV6 ? 16 : in[0] == SOCKS_NAME ? 1u + in[1] : 0;
    if (!n)
        return SIZE_MAX;
    if (bytes < 1 + n + 2)
        return 0;
    if (in[0] == SOCKS_NAME) {
        memcpy(host, in + 2, n - 1);
        host[n - 1] = '\0';
        if (n == 1 || strlen(host) != n - 1)
            return SIZE_MAX;
    } else {
        inet_ntop(in[0] == SOCKS_IPV4 ? AF_INET : AF_INET6, in + 1, host, INET6_ADDRSTRLEN);
    }
    *port = (uint32_t)in[1 + n] << 8 | in[2 + n];
    return 1 + n + 2;
}

static enum talk_next socks_request(struct talk *t, const uint8_t *in, size_t bytes, size_t *taken, struct talk_reply *reply)
{
    if (bytes < 5)
        return TALK_MORE;
    if (in[0] != SOCKS_VERSION || in[2] != 0)
        return socks_refuse(reply, SOCKS_FAILURE);
    if (in[3] != SOCKS_IPV4 && in[3] != SOCKS_IPV6 && in[3] != SOCKS_NAME)
        return socks_refuse(reply, SOCKS_NO_TYPE);
    size_t n = socks_address(in + 3, bytes - 3, t->host, &t->port);
    if (n == 0)
        return TALK_MORE;
    if (n == SIZE_MAX)
        return socks_refuse(reply, SOCKS_FAILURE);
    *taken = 3 + n;
    if (in[1] != SOCKS_CONNECT && in[1] != SOCKS_ASSOCIATE)
        return socks_refuse(reply, SOCKS_NO_COMMAND);
    t->state = TALK_SOCKS;
    if (in[1] == SOCKS_ASSOCIATE)
        return TALK_ASSOCIATE;
    return t->port ? TALK_GO : socks_refuse(reply, SOCKS_FAILURE);
}

size_t talk_datagram(const uint8_t *in, size_t bytes, char host[256], uint32_t *port)
{
    if (bytes < 4 || in[0] || in[1] || in[2]) /* in[2] is not 0: a fragment of a datagram; the RFC allows dropping fragments */
        return 0;
    size_t n = socks_address(in + 3, bytes - 3, host, port);
    return n == 0 || n == SIZE_MAX || !*port ? 0 : 3 + n;
}

size_t talk_datagram_head(uint8_t *end, const char *from)
{
    uint8_t at[22];
    size_t n = socks_local(at, from);
    at[0] = at[1] = at[2] = 0;
    memcpy(end - n, at, n);
    return n;
}

static uint8_t socks_code(int rc)
{
    switch (rc) {
    case -EACCES: return SOCKS_DENIED;
    case -ENETUNREACH: return SOCKS_NO_NET;
    case -EHOSTUNREACH: return SOCKS_NO_HOST;
    case -ECONNREFUSED: return SOCKS_REFUSED;
    case -ETIMEDOUT: return SOCKS_LATE;
    default: return SOCKS_FAILURE;
    }
}

/* --- HTTP --- */

static enum talk_next http_refuse(struct talk_reply *reply, const char *status, const char *more, const char *why)
{
    char head[1024];
    int n = snprintf(head, sizeof head,
                     "HTTP/1.1 %s\r\n%sContent-Type: text/plain; charset=utf-8\r\nContent-Length: %zu\r\nConnection: close\r\n\r\n%.600s\n",
                     status, more, strnlen(why, 600) + 1, why);
    put(reply, head, (size_t)n);
    return TALK_REFUSE;
}

static enum talk_next http_wrong(struct talk_reply *reply, const char *why)
{
    return http_refuse(reply, "400 Bad Request", "", why);
}

/* Returns the length of a request's head, including the empty line at its end. Returns 0 if the head is not complete. */
static size_t head_end(const uint8_t *in, size_t bytes)
{
    const uint8_t *end = in + bytes;
    for (const uint8_t *at = in; (at = memchr(at, '\r', (size_t)(end - at))); at++)
        if (end - at >= 4 && memcmp(at, "\r\n\r\n", 4) == 0)
            return (size_t)(at - in) + 4;
    return 0;
}

/* Returns the next line, without the line break. */
static const char *next_line(const char **at, size_t *len)
{
    const char *line = *at, *end = strstr(line, "\r\n");
    *len = (size_t)(end - line);
    *at = end + 2;
    return line;
}

static bool is_header(const char *line, size_t len, const char *name)
{
    size_t n = strlen(name);
    return len > n && line[n] == ':' && strncasecmp(line, name, n) == 0;
}

/* Returns whether the line is a Proxy-Authorization header with the proxy's user and password. */
static bool right_basic(const struct talk *t, const char *line, size_t len)
{
    static const char name[] = "Proxy-Authorization";
    uint8_t text[600];
    size_t bytes = 0;
    const char *at = line + sizeof name, *end = line + len;
    while (at < end && *at == ' ')
        at++;
    if (!is_header(line, len, name) || end - at < 6 || strncasecmp(at, "Basic ", 6) != 0 ||
        sodium_base642bin(text, sizeof text, at + 6, (size_t)(end - at - 6), " ", &bytes, NULL, sodium_base64_VARIANT_ORIGINAL))
        return false;
    const uint8_t *colon = memchr(text, ':', bytes);
    if (!colon)
        return false;
    bool user = same(t->user, text, (size_t)(colon - text));
    return same(t->password, colon + 1, (size_t)(text + bytes - colon - 1)) && user;
}

/* Reads "HOST:PORT" or "[IPV6]:PORT". `port` is the default port; 0: the text must contain a port. */
static bool read_authority(struct talk *t, const char *at, size_t len, uint32_t port)
{
    char text[300];
    int64_t n;
    if (len == 0 || len >= sizeof text)
        return false;
    memcpy(text, at, len);
    text[len] = '\0';
    char *host = text, *close = text[0] == '[' ? strchr(text, ']') : NULL, *colon = close ? strchr(close, ':') : strrchr(text, ':');
    if (close) {
        if (close[1] && close[1] != ':')
            return false;
        *close = '\0';
        if (!strchr(++host, ':')) /* an error, because only IPv6 addresses may be in brackets */
            return false;
    } else if (strpbrk(text, "[]") || (colon && strchr(text, ':') != colon)) {
        return false;
    }
    t->port = port;
    if (colon) {
        if (base_parse_number(colon + 1, 1, 65535, &n))
            return false;
        *colon = '\0';
        t->port = (uint32_t)n;
    }
    size_t bytes = strlen(host);
    if (bytes == 0 || bytes >= sizeof t->host || !t->port)
        return false;
    memcpy(t->host, host, bytes + 1);
    return true;
}

/* Whether a header is not passed on: it is for the proxy, or it is Host, which the proxy writes itself. */
static bool is_ours(const char *line, size_t len)
{
    static const char *const names[] = {"Connection", "Keep-Alive", "Proxy-Connection", "Proxy-Authorization", "TE", "Upgrade", "Host"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (is_header(line, len, names[i]))
            return true;
    return false;
}

/* If the line is a header with the body's length, reads the length. Returns false if the length is invalid, or if an earlier line was such
 * a header. */
static bool read_length(struct talk_body *b, const char *line, size_t len)
{
    static const char chunked[] = "chunked";
    const char *at = memchr(line, ':', len), *end = line + len;
    bool chunks = is_header(line, len, "Transfer-Encoding");
    if (!chunks && !is_header(line, len, "Content-Length"))
        return true;
    for (at++; at < end && (*at == ' ' || *at == '\t'); at++)
        ;
    for (; at < end && (end[-1] == ' ' || end[-1] == '\t'); end--)
        ;
    if (b->digits || at == end)
        return false;
    b->digits = true; /* until the body begins, `digits` means that there was a header with the body's length */
    if (chunks) {
        b->state = BODY_SIZE;
        return end - at == sizeof chunked - 1 && strncasecmp(at, chunked, sizeof chunked - 1) == 0;
    }
    for (; at < end && *at >= '0' && *at <= '9' && b->left < UINT64_MAX / 20; at++)
        b->left = b->left * 10 + (uint64_t)(*at - '0');
    b->state = b->left ? BODY_BYTES : BODY_OVER;
    return at == end;
}

/* Writes the head of the request for the server: with the path instead of the whole URL, and without headers for the proxy. */
static enum talk_next http_plain(struct talk *t, const char *method, size_t method_len, const char *url, size_t url_len, const char *lines,
                                 struct talk_reply *reply)
{
    if (url_len < 7 || strncasecmp(url, "http://", 7) != 0)
        return http_wrong(reply, "this is a proxy: send CONNECT HOST:PORT, or a request with a whole http:// URL");
    const char *from = url + 7, *end = url + url_len;
    size_t authority = 0;
    while (from + authority < end && !strchr("/?#", from[authority]))
        authority++;
    const char *path = from + authority, *fragment = path;
    while (fragment < end && *fragment != '#')
        fragment++;
    end = fragment;
    for (size_t i = 0; i < authority; i++)
        if (from[i] == '@')
            return http_wrong(reply, "the URL must not contain a user");
    if (!read_authority(t, from, authority, 80))
        return http_wrong(reply, "the host or the port in the URL is invalid");
    put(reply, method, method_len);
    put_text(reply, path < end && *path == '/' ? " " : " /");
    put(reply, path, (size_t)(end - path));
    put_text(reply, " HTTP/1.1\r\nHost: ");
    put(reply, from, authority);
    put_text(reply, "\r\nConnection: close\r\n");
    size_t len;
    for (const char *line; (line = next_line(&lines, &len)) && len;) {
        if (!read_length(&t->body, line, len)) {
            reply->bytes = 0;
            return http_wrong(
                reply, "the header with the length of the body (Content-Length, Transfer-Encoding) is invalid, or there are two of them");
        }
        if (!is_ours(line, len)) {
            put(reply, line, len);
            put_text(reply, "\r\n");
        }
    }
    put_text(reply, "\r\n");
    t->body.digits = false;
    t->state = TALK_PLAIN;
    return TALK_GO;
}

/* Checks the headers of a request: the characters must be printable, and each line must have a name. `*right`: one of the lines has the
 * right password, if one is needed. */
static bool check_lines(const struct talk *t, const char *at, bool *right)
{
    size_t len;
    for (const char *line; (line = next_line(&at, &len)) && len;) {
        const char *colon = memchr(line, ':', len);
        if (!colon || colon == line || line[0] == ' ' || line[0] == '\t' || colon[-1] == ' ' || colon[-1] == '\t')
            return false;
        *right = *right || right_basic(t, line, len);
    }
    return true;
}

static enum talk_next http_request(struct talk *t, const uint8_t *in, size_t bytes, size_t *taken, struct talk_reply *reply)
{
    char head[TALK_MAX + 1];
    size_t n = head_end(in, bytes), len;
    if (!n)
        return bytes < TALK_MAX ? TALK_MORE
                                : http_refuse(reply, "431 Request Header Fields Too Large", "", "the head of the request is too long");
    memcpy(head, in, n);
    head[n] = '\0';
    *taken = n;
    for (size_t i = 0; i < n; i++) {
        bool end = (head[i] == '\r' && head[i + 1] == '\n') || (head[i] == '\n' && i && head[i - 1] == '\r');
        if (((unsigned char)head[i] < ' ' && head[i] != '\t' && !end) || head[i] == 0x7f)
            return http_wrong(reply, "the head of the request contains an invalid character");
    }
    const char *lines = head, *line = next_line(&lines, &len), *url = memchr(line, ' ', len);
    const char *version = url ? memchr(url + 1, ' ', (size_t)(line + len - url - 1)) : NULL;
    bool right = !t->user;
    if (!version || url == line || memchr(line, '\t', len) || (line + len - version != 9) || strncmp(version, " HTTP/1.", 8) != 0)
        return http_wrong(reply, "this is a proxy for HTTP/1.1 and SOCKS5");
    if (!check_lines(t, lines, &right))
        return http_wrong(reply, "a line in the head of the request is not a header: it has no name");
    if (!right)
        return http_refuse(reply, "407 Proxy Authentication Required", "Proxy-Authenticate: Basic realm=\"weft proxy\"\r\n",
                           "this proxy needs a user and a password");
    size_t url_len = (size_t)(version - url - 1);
    if (url - line != 7 || memcmp(line, "CONNECT", 7) != 0)
        return http_plain(t, line, (size_t)(url - line), url + 1, url_len, lines, reply);
    if (!read_authority(t, url + 1, url_len, 0))
        return http_wrong(reply, "CONNECT needs HOST:PORT");
    t->state = TALK_CONNECT;
    return TALK_GO;
}

/* --- the body of a plain request --- */

/* Handles the next byte between two chunks. An invalid byte is passed on, and ends the body. */
static enum body_state body_byte(struct talk_body *b, uint8_t c)
{
    const char *hex = "0123456789abcdef", *digit = c ? strchr(hex, c >= 'A' && c <= 'F' ? c + 'a' - 'A' : c) : NULL;
    switch (b->state) {
    case BODY_SIZE:
        if (digit && b->left < UINT64_MAX / 32) {
            b->left = b->left * 16 + (uint64_t)(digit - hex);
            b->digits = true;
            return BODY_SIZE;
        }
        return !b->digits ? BODY_OVER : c == '\r' ? BODY_SIZE_LF : c == ';' || c == ' ' || c == '\t' ? BODY_EXTENSION : BODY_OVER;
    case BODY_EXTENSION: return c == '\r' ? BODY_SIZE_LF : c == '\n' ? BODY_OVER : BODY_EXTENSION;
    case BODY_SIZE_LF: return c != '\n' ? BODY_OVER : b->left ? BODY_CHUNK : BODY_TRAILER;
    case BODY_CHUNK_CR: return c == '\r' ? BODY_CHUNK_LF : BODY_OVER;
    case BODY_CHUNK_LF: b->digits = false; return c == '\n' ? BODY_SIZE : BODY_OVER;
    case BODY_TRAILER: return c == '\r' ? BODY_LAST_LF : c == '\n' ? BODY_OVER : BODY_TRAILER_LINE;
    case BODY_TRAILER_LINE: return c == '\r' ? BODY_TRAILER_LF : c == '\n' ? BODY_OVER : BODY_TRAILER_LINE;
    case BODY_TRAILER_LF: return c == '\n' ? BODY_TRAILER : BODY_OVER;
    default: return BODY_OVER; /* BODY_LAST_LF */
    }
}

size_t talk_body(struct talk_body *b, const uint8_t *in, size_t bytes)
{
    size_t at = 0;
    while (at < bytes && b->state != BODY_OVER) {
        if (b->state != BODY_BYTES && b->state != BODY_CHUNK) {
            b->state = body_byte(b, in[at++]);
            continue;
        }
        size_t n = b->left < bytes - at ? (size_t)b->left : bytes - at;
        at += n;
        b->left -= n;
        if (!b->left)
            b->state = b->state == BODY_BYTES ? BODY_OVER : BODY_CHUNK_CR;
    }
    return at;
}

/* --- the public functions --- */

enum talk_next talk_read(struct talk *t, const uint8_t *in, size_t bytes, size_t *taken, struct talk_reply *reply)
{
    *taken = 0;
    reply->bytes = 0;
    if (bytes == 0)
        return TALK_MORE;
    switch (t->state) {
    case TALK_FIRST:
        if (in[0] != SOCKS_VERSION && (in[0] < 'A' || in[0] > 'Z'))
            return http_wrong(reply, "this is a proxy for HTTP/1.1 and SOCKS5");
        return in[0] == SOCKS_VERSION ? socks_methods(t, in, bytes, taken, reply) : http_request(t, in, bytes, taken, reply);
    case TALK_SOCKS_PASSWORD: return socks_password(t, in, bytes, taken, reply);
    case TALK_SOCKS_REQUEST: return socks_request(t, in, bytes, taken, reply);
    default: return TALK_REFUSE;
    }
}

void talk_opened(const struct talk *t, const char *local, struct talk_reply *reply)
{
    reply->bytes = 0;
    if (t->state == TALK_SOCKS)
        socks_reply(reply, SOCKS_OK, local);
    else if (t->state == TALK_CONNECT)
        put_text(reply, "HTTP/1.1 200 Connection established\r\n\r\n");
}

void talk_failed(const struct talk *t, int rc, const char *why, struct talk_reply *reply)
{
    char text[640];
    reply->bytes = 0;
    snprintf(text, sizeof text, "weft proxy: %.600s", why);
    if (t->state == TALK_SOCKS)
        socks_reply(reply, socks_code(rc), NULL);
    else
        http_refuse(reply, rc == -EACCES ? "403 Forbidden" : rc == -ETIMEDOUT ? "504 Gateway Timeout" : "502 Bad Gateway", "", text);
}
