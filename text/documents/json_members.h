/* The members of an object of training data: which are read, which switch a loss off, which are refused because they
 * could matter, and which are passed over and said. */
#ifndef SW_TEXT_DOCUMENTS_JSON_MEMBERS_H
#define SW_TEXT_DOCUMENTS_JSON_MEMBERS_H

#include "core/status.h"

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

/* Names of members that were passed over. A zeroed struct has none; sw_json_passed_release frees it. */
struct sw_json_passed {
    char **name;
    int count, room;
    bool more;      /* there were more names than are kept */
    int64_t beside; /* documents of another schema that had a 'text', too */
};
void sw_json_passed_release(struct sw_json_passed *passed);
/* Says in the log which members were passed over, if any. */
void sw_json_passed_say(const struct sw_json_passed *passed);

/* Returns a member, or NULL where it is absent or null, which is the same in training data. */
const json_t *sw_json_member(const json_t *object, const char *name);

/* Where an object stands, for messages. */
struct sw_json_place {
    const char *where; /* "chat.jsonl:12" */
    const char *what;  /* "a message"; NULL: the line's object itself */
    bool chosen;       /* --field names what is read, so that no other member matters */
};

/* Looks at all members but those in `known`, which ends with NULL, and the loss switches. Refuses what could change
 * what is learnt (tools, images, pairs of preferences), and notes the rest in `passed`. */
sw_status sw_json_check_members(const json_t *object, const char *const *known, struct sw_json_place place,
                                struct sw_json_passed *passed);

typedef enum { SW_LOSS_NOT_SAID, SW_LOSS_OFF, SW_LOSS_ON } sw_loss_switch;

/* Reads the members by which data sets switch the loss of a message, or a line, off or on: loss, train, training,
 * trainable, loss_mask and weight (true or 1: on), and masked (true or 1: off). Their letters may be capitals, and the
 * values strings: "True", "no", "off", "0". Refuses other values, switches that differ, and weights between. *out_name
 * is the switch. */
sw_status sw_json_loss_switch(const json_t *object, struct sw_json_place place, sw_loss_switch *out,
                              const char **out_name);

#endif
