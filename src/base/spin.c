/* SPDX-License-Identifier: MIT
 *
 * The slow path of the spinlock. It yields the processor, because the holder may be waiting for a processor.
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
