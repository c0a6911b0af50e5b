/* Which token files stay in the cache: all that were used in the last 30 days, as long as they take no more than a
 * tenth of the file system; beyond that, those unused longest go first, but none that was used within a day. A file
 * that a process has open stays. A run whose tokens went makes them again of its text (text_data.h). */
#ifndef SW_RUN_DATA_TOKEN_CACHE_H
#define SW_RUN_DATA_TOKEN_CACHE_H

/* Removes what may go, before a token file is made at `path` in the cache, and says so in one line. Does what it can:
 * a file that cannot be removed stays. */
void sw_token_cache_make_room(const char *path);
/* Notes that a token file of the cache is used now. */
void sw_token_cache_note_use(const char *path);

#endif
