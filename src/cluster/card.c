/* SPDX-License-Identifier: MIT
 *
 * The first messages between a joining node and the node that admits it: hello, challenge, the joining node's card (its names and
 * addresses), and their MACs. wire.h describes the messages.
 */
#include <sodium.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "cluster/join.h"

void join_key(uint8_t key[32], const struct cluster_settings *s)
{
    static const char no_secret[] = "weft without a secret";
    crypto_generichash(key, 32, s->secret ? s->secret : (const uint8_t *)no_secret, s->secret ? s->secret_len : sizeof no_secret - 1, NULL,
                       0);
}

/* --- MACs --- */

void join_proof_mac(uint8_t out[WIRE_MAC], const struct join *j, const struct wire_hello *hello, const struct wire_challenge *challenge,
                    const struct wire_card *card)
{
    join_mac(out, j->key, "weft proof", hello, sizeof *hello, challenge, sizeof *challenge, card, sizeof *card);
}

void join_answer_mac(uint8_t out[WIRE_MAC], const struct join *j, const struct wire_hello *hello, const struct wire_answer *answer,
                     const struct wire_card *cards)
{
    struct wire_answer plain = *answer;
    memset(plain.mac, 0, sizeof plain.mac);
    join_mac(out, j->key, "weft answer", hello, sizeof *hello, &plain, sizeof plain, cards, plain.count * sizeof *cards);
}

/* --- cards --- */

void join_card_make(struct wire_card *c, const struct join *j, const struct join_self *self)
{
    memset(c, 0, sizeof *c);
    c->rank = self->rank;
    c->pid = (uint32_t)getpid();
    c->pool_bytes = self->pool_bytes;
    c->grows = self->grows;
    memcpy(c->host_id, self->host_id, sizeof c->host_id);
    if (gethostname(c->host, sizeof c->host - 1))
        snprintf(c->host, sizeof c->host, "?");
    memcpy(c->side, j->here.bound, strnlen(j->here.bound, sizeof c->side - 1));
    /* Remove the interface's name, which is valid only on this host. */
    const char *away = j->away.bound, *rest = strchr(away, ']');
    snprintf(c->away, sizeof c->away, "%.*s%s", (int)strcspn(away, "%"), away, strchr(away, '%') && rest ? rest : "");
    c->liveness_ns = self->liveness_ns;
    base_cpu_set(c->cpus);
}

bool join_card_ok(const struct wire_card *c, uint32_t rank)
{
    return c->rank == rank && memchr(c->host, 0, sizeof c->host) && memchr(c->side, 0, sizeof c->side) &&
           memchr(c->away, 0, sizeof c->away) && strncmp(c->side, "unix:", 5) == 0 && strncmp(c->away, "unix:", 5) != 0 &&
           c->pool_bytes <= WEFT_MAX_POOL_BYTES && c->liveness_ns > 0 && c->liveness_ns <= WIRE_LIVENESS_MAX && c->grows <= 1;
}

/* --- the first messages --- */

int join_reach(const char *who, const char *address, int64_t connect_until, int64_t answer_until, struct wire_hello *hello,
               struct wire_challenge *challenge)
{
    int pid, rc, fd = cluster_connect(address, connect_until);
    if (fd < 0)
        return base_context(fd, "%s did not answer", who);
    if (!join_user_allowed(fd, &pid)) {
        close(fd);
        return base_fail(-EACCES,
                         "the process that listens at %s (pid %d) belongs to another user, so nothing was sent to it; choose another "
                         "address (%s)",
                         address, pid, hello->size ? "WEFT_COORD" : "WEFT_JOIN");
    }
    rc = base_random(hello->nonce, sizeof hello->nonce);
    if (!rc)
        rc = join_write(fd, hello, sizeof *hello, answer_until);
    if (!rc)
        rc = join_read(fd, challenge, sizeof *challenge, answer_until);
    if (!rc && challenge->magic != WIRE_MAGIC)
        rc = -EPROTO;
    if (!rc)
        return fd;
    close(fd);
    if (rc == -ECONNRESET || rc == -EPIPE)
        return base_fail(rc, "%s at %s closed the connection: it failed or ended (see its messages), or runs another version of weft", who,
                         address);
    return base_fail(
        rc, "%s at %s did not answer as this version of weft does (%s): check the address, and run the same version of weft on all hosts",
        who, address, base_strerror(rc));
}

int join_prove(struct join *j, int fd, const struct wire_hello *hello, const struct wire_challenge *challenge, struct wire_proof *proof,
               struct wire_answer *answer)
{
    join_proof_mac(proof->mac, j, hello, challenge, &proof->card);
    int rc = join_write(fd, proof, sizeof *proof, j->deadline);
    return rc ? rc : join_read(fd, answer, sizeof *answer, j->deadline + JOIN_ANSWER_GRACE);
}
