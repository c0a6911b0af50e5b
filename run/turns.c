#include "run/turns.h"

#include "core/error_scope.h"
#include "core/log.h"
#include "text/documents/chat_template.h"
#include "text/model_text.h"

#include <stdlib.h>
#include <string.h>

/* Opens the model's tokenizer. A run of token files does not need it, so one that this program cannot read is no error.
 */
static bool opens(const char *folder, struct sw_model_text *model) {
    SW_HANDLES_ERRORS();
    return sw_model_text_is_there(folder) && sw_model_text_open(folder, model) == SW_OK;
}

/* Returns the token that ends a turn by the model's chat template, or -1 where its chats cannot be written. */
static int32_t end_of_turn(const struct sw_trainer *trainer, const struct sw_model_text *model) {
    SW_HANDLES_ERRORS();
    struct sw_chat_style chat = {0};
    int32_t id = -1;
    if (sw_chat_style_open(trainer->model_folder, trainer->run.settings.chat_format, model->tokenizer, &chat) == SW_OK)
        id = sw_tokenizer_find(model->tokenizer, chat.end_of_turn);
    sw_chat_style_release(&chat);
    return id;
}

static sw_status note(struct sw_trainer *trainer, const struct sw_model_text *model, int32_t id) {
    const struct sw_text token = sw_tokenizer_text(model->tokenizer, id);
    trainer->run.turn_end = (struct sw_turn_end){.id = id, .token = strndup(token.data, token.bytes)};
    if (trainer->run.turn_end.token == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory for the token that ends turns");
    sw_log_info("turns end with %s (%d), which is not the model's eos_token; exports name it as theirs, so that other "
                "programs stop there too",
                trainer->run.turn_end.token, id);
    return SW_OK;
}

sw_status sw_turns_find(struct sw_trainer *trainer) {
    struct sw_model_text model;
    bool learns = false;
    if (!opens(trainer->model_folder, &model))
        return SW_OK;
    const int32_t id = end_of_turn(trainer, &model);
    sw_status status = SW_OK;
    if (id >= 0 && !sw_model_text_ends(&model, id))
        status = sw_data_learns(trainer->data, id, &learns);
    if (status == SW_OK && learns)
        status = note(trainer, &model, id);
    sw_model_text_close(&model);
    return status;
}
