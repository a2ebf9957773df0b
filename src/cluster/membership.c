/* SPDX-License-Identifier: MIT
 *
 * weft_on_change(): calls the program's callbacks when membership changes.
 */
#include "fabric/fabric.h"

#include <stdlib.h>

struct listener {
    weft_member_fn fn;
    void *arg;
};

static void membership_tell(struct weft_node *w, uint32_t node, bool died, void *arg)
{
    struct listener *l = arg;
    l->fn(w, weft_epoch(w), node, died, l->arg);
}

static void membership_tell_join(struct weft_node *w, uint32_t node, void *arg)
{
    membership_tell(w, node, false, arg);
}

static void membership_forget(struct weft_node *w, void *arg)
{
    (void)w;
    free(arg);
}

int weft_on_change(weft_node *w, weft_member_fn fn, void *arg)
{
    if (!fn)
        return base_fail(-EINVAL, "weft_on_change(): fn must not be NULL");
    struct listener *l = malloc(sizeof *l);
    if (!l)
        return base_fail(-ENOMEM, "no memory for a membership callback" BASE_MEMORY_HINT);
    *l = (struct listener){fn, arg};
    int rc = fab_hook(w, &(struct fab_hook){.gone = membership_tell, .joined = membership_tell_join, .close = membership_forget, .arg = l});
    if (rc)
        free(l);
    return rc;
}
