/* Judges from what the ranks have told whether and why a job must end. */
#include "core/ranks/watch_private.h"

#include <stdio.h>
#include <string.h>

#define SECONDS(ns) ((double)(ns) / 1e9)

/* Writes the name of the note's sender: "rank 2 (process 123 on host, tensor group of ranks 2 and 3)". */
static void name_rank(const struct sw_note *note, char out[SW_WATCH_NAME_CHARS]) {
    snprintf(out, SW_WATCH_NAME_CHARS, "rank %d (process %lld on %s%s%s)", note->rank, (long long)note->process,
             note->host, note->group[0] != '\0' ? ", " : "", note->group);
}

static const struct sw_watch_lane *collective(const struct sw_watch_view *view) {
    return &view->note->lanes[SW_WATCH_COMM];
}

/* Returns the rank that is furthest among those inside a collective; -1: none is. */
static int furthest(const struct sw_watch_view *views, int ranks) {
    int best = -1;
    for (int rank = 0; rank < ranks; rank++)
        if (!views[rank].left && collective(&views[rank])->running_ns >= 0 &&
            (best < 0 || collective(&views[rank])->entered > collective(&views[best])->entered))
            best = rank;
    return best;
}

/* Returns the rank that waits in the first collective that this one has yet to enter; -1: none waits there. All ranks
 * begin the same collectives in the same order, so whoever is further may wait for the waiting rank alone. */
static int first_waiting(const struct sw_watch_view *views, int ranks, int rank) {
    int best = -1;
    for (int other = 0; other < ranks; other++)
        if (!views[other].left && collective(&views[other])->running_ns >= 0 &&
            collective(&views[other])->entered > collective(&views[rank])->entered &&
            (best < 0 || collective(&views[other])->entered < collective(&views[best])->entered))
            best = other;
    return best;
}

/* Returns the lane that has been longest in its work; -1: all are idle. */
static int longest_lane(const struct sw_note *note, int lane_count) {
    int longest = -1;
    for (int lane = 0; lane < lane_count; lane++)
        if (note->lanes[lane].running_ns >= 0 &&
            (longest < 0 || note->lanes[lane].running_ns > note->lanes[longest].running_ns))
            longest = lane;
    return longest;
}

/* Describes what a rank was doing, beside what the others wait for. */
static void place_of(const struct sw_watch_view *views, int ranks, int rank, const struct sw_watch_rule *rule,
                     char *out, size_t chars) {
    const struct sw_note *note = views[rank].note;
    const int waiting = first_waiting(views, ranks, rank), lane = longest_lane(note, rule->lane_count);
    size_t used = 0;
    out[0] = '\0';
    if (waiting >= 0)
        used = (size_t)snprintf(out, chars, "; it has not entered '%s %lld', where rank %d waits",
                                collective(&views[waiting])->what, (long long)collective(&views[waiting])->index,
                                views[waiting].note->rank);
    if (lane >= 0 && used < chars)
        snprintf(out + used, chars - used, "; its lane %s was in '%s %lld'", rule->lanes[lane], note->lanes[lane].what,
                 (long long)note->lanes[lane].index);
}

static bool say(const struct sw_watch_view *views, int ranks, int rank, const struct sw_watch_rule *rule,
                const char *what, int64_t ns, char text[SW_WATCH_TEXT_CHARS]) {
    char name[SW_WATCH_NAME_CHARS], place[SW_WATCH_TEXT_CHARS / 2];
    name_rank(views[rank].note, name);
    place_of(views, ranks, rank, rule, place, sizeof place);
    snprintf(text, SW_WATCH_TEXT_CHARS, "%s %s for %.1f s%s", name, what, SECONDS(ns), place);
    return true;
}

void sw_watch_describe_death(const struct sw_watch_view *views, int ranks, int rank, const struct sw_watch_rule *rule,
                             char text[SW_WATCH_TEXT_CHARS]) {
    const struct sw_watch_lane *within = collective(&views[rank]);
    char name[SW_WATCH_NAME_CHARS], place[SW_WATCH_TEXT_CHARS / 2];
    name_rank(views[rank].note, name);
    if (within->running_ns >= 0)
        snprintf(place, sizeof place, " in '%s %lld'", within->what, (long long)within->index);
    else
        place_of(views, ranks, rank, rule, place, sizeof place);
    snprintf(text, SW_WATCH_TEXT_CHARS, "%s has died%s", name, place);
}

/* Describes a rank that is alive and may only be slow, with the remedy for that. */
static bool say_slow(const struct sw_watch_view *views, int ranks, int rank, const struct sw_watch_rule *rule,
                     char text[SW_WATCH_TEXT_CHARS]) {
    (void)say(views, ranks, rank, rule, "has done nothing", views[rank].still_ns, text);
    const size_t used = strlen(text);
    if (rule->remedy != NULL)
        snprintf(text + used, SW_WATCH_TEXT_CHARS - used, "; if that is only slow, %s", rule->remedy);
    return true;
}

static int64_t still_limit_ns(const struct sw_watch_view *view, const struct sw_watch_rule *rule) {
    return view->note->patient ? SW_WATCH_PATIENCE * rule->timeout_ns : rule->timeout_ns;
}

/* Tells whether a rank is behind another that is behind itself: ranks of one node may wait for theirs in a collective
 * that ranks of another node have yet to enter. Of two that are as far, the one outside of it keeps the other. */
static bool is_further_behind(const struct sw_watch_view *view, const struct sw_watch_view *other) {
    const struct sw_watch_lane *own = collective(view), *others = collective(other);
    if (own->entered != others->entered)
        return own->entered < others->entered;
    return own->running_ns < 0 && others->running_ns >= 0;
}

bool sw_watch_judge(const struct sw_watch_view *views, int ranks, const struct sw_watch_rule *rule,
                    char text[SW_WATCH_TEXT_CHARS]) {
    for (int rank = 0; rank < ranks; rank++)
        if (!views[rank].left && views[rank].silent_ns > rule->timeout_ns)
            return say(views, ranks, rank, rule, "has not answered", views[rank].silent_ns, text);
    const int waiting = furthest(views, ranks);
    if (waiting < 0 || collective(&views[waiting])->running_ns <= rule->timeout_ns)
        return false;
    bool all_still = true;
    int slow = -1;
    for (int rank = 0; rank < ranks; rank++) {
        const struct sw_watch_view *view = &views[rank];
        const bool behind = collective(view)->entered < collective(&views[waiting])->entered;
        const bool still = view->still_ns > still_limit_ns(view, rule);
        if (behind && view->left)
            return say(views, ranks, rank, rule, "has been gone", view->silent_ns, text);
        if (behind && (slow < 0 || is_further_behind(view, &views[slow])))
            slow = rank;
        all_still = all_still && !behind && still;
    }
    /* While the last rank moves, those that are before it may wait for it and be still. */
    if (slow >= 0)
        return views[slow].still_ns > still_limit_ns(&views[slow], rule) && say_slow(views, ranks, slow, rule, text);
    if (all_still)
        snprintf(text, SW_WATCH_TEXT_CHARS,
                 "all %d ranks have waited in '%s %lld' for %.1f s and nothing moves: the network between them is at "
                 "fault",
                 ranks, collective(&views[waiting])->what, (long long)collective(&views[waiting])->index,
                 SECONDS(collective(&views[waiting])->running_ns));
    return all_still;
}
