/* SPDX-License-Identifier: MIT
 *
 * The slow path of the spinlock. A waiting thread yields its processor, because the thread that holds the lock may be waiting for one.
 */
#include "base/base.h"

#include <sched.h>

void base_spin_wait(base_spin *s)
{
    for (unsigned i = 0; !base_spin_try(s); i++) {
        if (i < 64)
            base_relax();
        else if (i < 1024)
            sched_yield();
        else
            base_sleep_ns(50000);
    }
}
