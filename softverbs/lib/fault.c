/* SPDX-License-Identifier: MIT
 *
 * Applies the rules of `softverbs fault`, which are in the fabric's file, and may change while programs run.
 *
 * Random decisions are reproducible. A decision is a hash of the rule's seed, the sender's device, the ordinal of the queue pair among
 * those created on the device, and the ordinal of the message on the queue pair. So a seed has the same effect on the same program, however
 * its processes are scheduled. Rules that count matches count over all queue pairs. If their effect must not depend on scheduling, restrict
 * them to one queue pair (--qp, --device).
 */
#include "engine.h"

#include <errno.h>

static inline uint64_t fault_mix(uint64_t x)
{
    /* Each bit of x affects all bits: multiplying by an odd number spreads bits upwards, shifting spreads them downwards. */
    x ^= x >> 32;
    x *= UINT64_C(0xd6e8feb86659fd93);
    x ^= x >> 32;
    x *= UINT64_C(0xd6e8feb86659fd93);
    return x ^ x >> 32;
}

uint64_t sv_dice(uint64_t seed, uint64_t a, uint64_t b, uint64_t c)
{
    /* Each word is added to the hash of the words before, so that (1, 2) and (2, 1) differ. The constant is there because the hash of 0 is
     * 0. */
    uint64_t x = fault_mix(seed + UINT64_C(0x9e3779b97f4a7c15));
    x = fault_mix(x + a);
    x = fault_mix(x + UINT64_C(0x9e3779b97f4a7c15) + b);
    return fault_mix(x + UINT64_C(0x9e3779b97f4a7c15) + c);
}

/* Whether a matching rule applies now. `dice`: the random number for this rule and message. */
static bool fault_strikes(struct sf_fault *r, uint64_t dice)
{
    uint64_t turn = atomic_fetch_add_explicit(&r->matches, 1, memory_order_relaxed) + 1;
    if (r->first || r->every) {
        uint64_t first = r->first ? r->first : r->every;
        if (turn < first || (turn > first && (r->every == 0 || (turn - first) % r->every != 0)))
            return false;
    }
    if (r->chance_ppm && dice % 1000000 >= r->chance_ppm)
        return false;
    uint64_t hits = atomic_load_explicit(&r->hits, memory_order_relaxed);
    do {
        if (r->count && hits >= r->count)
            return false;
    } while (!atomic_compare_exchange_weak_explicit(&r->hits, &hits, hits + 1, memory_order_relaxed, memory_order_relaxed));
    return true;
}

static bool fault_concerns(const struct sf_fault *r, uint32_t device, uint32_t host)
{
    return (r->device == SF_NO_DEVICE || r->device == device) && (r->host == SF_NO_DEVICE || r->host == host);
}

void sv_judge_slow(uint32_t entry, uint64_t message, struct sv_verdict *verdict)
{
    struct sf_fabric *f = sv_lib.fabric;
    const struct sf_qp *qp = &f->qps[entry % SF_QPS];
    uint32_t device = qp->device;
    uint32_t host = device < SV_DEVICES ? f->model.topology.devices[device].host : SF_NO_DEVICE;

    *verdict = (struct sv_verdict){.dice = sv_dice(f->seed, device, qp->ordinal, message)};
    for (uint32_t i = 0; i < SF_FAULTS; i++) {
        struct sf_fault *r = &f->faults[i];
        /* acquire: pairs with the release in cli/fault.c, which writes the kind after the rest of the rule */
        uint32_t kind = atomic_load_explicit(&r->kind, memory_order_acquire);
        if (kind == SF_FAULT_NONE || kind == SF_FAULT_REFUSE || kind > SF_FAULT_OVERTAKE)
            continue;
        if (kind == SF_FAULT_OVERTAKE && sv_send_slot(qp, qp->send_done)->opcode != IBV_WR_RDMA_READ)
            continue;
        if (!fault_concerns(r, device, host) || (r->qp_num && r->qp_num != qp->number))
            continue;
        /* the kind is added to the seed, so that rules of two kinds with the same seed select different messages */
        uint64_t dice = sv_dice(r->seed + ((uint64_t)kind << 56), device, qp->ordinal, message);
        if (!fault_strikes(r, dice))
            continue;
        switch (kind) {
        case SF_FAULT_DROP: verdict->drop = true; break;
        case SF_FAULT_CORRUPT:
            verdict->corrupt = true;
            verdict->dice = fault_mix(dice); /* hashed again, because the byte must not depend on which message was selected */
            break;
        case SF_FAULT_DELAY: verdict->delay_ns += r->nanoseconds; break;
        case SF_FAULT_WITHHOLD: verdict->hold_ns += r->nanoseconds; break;
        case SF_FAULT_REORDER: verdict->hold_ns += r->nanoseconds ? fault_mix(dice + 1) % r->nanoseconds : 0; break;
        case SF_FAULT_OVERTAKE:
            verdict->delay_ns += r->nanoseconds;
            verdict->overtaken = true;
            break;
        default: break;
        }
        sv_log(SV_DEBUG, "fault %u: %s%s%s message %llu of queue pair 0x%06x", r->id, verdict->drop ? "drops" : "",
               verdict->corrupt ? "corrupts" : "", verdict->delay_ns || verdict->hold_ns ? "holds up" : "", (unsigned long long)message,
               qp->number);
    }
}

int sv_refused_slow(enum sf_verb verb, uint32_t device)
{
    struct sf_fabric *f = sv_lib.fabric;
    for (uint32_t i = 0; i < SF_FAULTS; i++) {
        struct sf_fault *r = &f->faults[i];
        /* acquire: as above */
        if (atomic_load_explicit(&r->kind, memory_order_acquire) != SF_FAULT_REFUSE || r->verb != (uint32_t)verb)
            continue;
        if (!fault_concerns(r, device, sv_lib.host))
            continue;
        uint64_t turn = atomic_load_explicit(&r->matches, memory_order_relaxed);
        if (!fault_strikes(r, sv_dice(r->seed, device, verb, turn)))
            continue;
        int error = r->error > 0 ? r->error : EIO;
        sv_log(SV_INFO, "the call is refused with errno %d by rule %u of `softverbs fault list`", error, r->id);
        return error;
    }
    return 0;
}
